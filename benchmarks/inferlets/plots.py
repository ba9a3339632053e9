"""The ratios of latency and throughput, as figures 6 to 8 of Pie's paper."""

from __future__ import annotations

from pathlib import Path

from benchmarks.plots import pyplot, save
from pie_py.bench.report import Report


def plot(report: Report, path: Path) -> None:
    """Draws a panel of latencies and one of throughputs: bars over the script's, by round trip.

    Raises:
        RuntimeError: matplotlib is not there, or the file can't be written.
    """
    names = list(dict.fromkeys(str(row[0]) for row in report.rows))
    trips = list(dict.fromkeys(int(row[1]) for row in report.rows))
    figure, panels = pyplot().subplots(1, 2, figsize=(13, 0.55 * len(names) + 1.5), sharey=True)
    for axis, column in zip(panels, (4, 7), strict=True):
        for i, trip in enumerate(trips):
            ratios = {str(row[0]): row[column] for row in report.rows if row[1] == trip}
            places = [n + (i - (len(trips) - 1) / 2) * 0.8 / len(trips) for n in range(len(names))]
            bars = axis.barh(
                places, [ratios[name] for name in names], 0.8 / len(trips), label=f"{trip} ms"
            )
            axis.bar_label(bars, [f"{ratios[name]:.2f}" for name in names], fontsize="x-small")
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set(xlabel=report.columns[column])
        axis.margins(x=0.08)
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    panels[1].legend(title="round trip", bbox_to_anchor=(1.01, 1), loc="upper left")
    figure.suptitle(report.title)
    figure.tight_layout()
    save(figure, path)
