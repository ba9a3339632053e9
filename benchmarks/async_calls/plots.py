"""The figures 5 to 8 of AsyncLM from this run: latencies, and the choices of traps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.plots import pyplot, save
from pie_py.bench.report import Report

COLOURS = {"preserve": "tab:blue", "swap": "tab:orange", "discard": "tab:green"}


def plot(reports: Sequence[Report], path: Path) -> None:
    """Draws a panel for each table of latencies and for the map of traps, two in a row.

    Raises:
        RuntimeError: if there is nothing to draw, matplotlib is not there, or the file can't be
            written.
    """
    drawn = [one for one in reports if one.rows and one.columns[0] in ("side", "tokens")]
    drawn = [one for one in drawn if "median" in one.columns or one.columns[0] == "tokens"]
    if not drawn:
        raise RuntimeError("nothing was measured that could be drawn")
    rows = -(-len(drawn) // 2)
    figure, axes = pyplot().subplots(
        rows, 2, figsize=(13, 4 * rows), squeeze=False, layout="constrained"
    )
    panels = [axis for row in axes for axis in row]
    for axis, report in zip(panels, drawn, strict=False):
        axis.set_title(report.title, fontsize="medium")
        if report.columns[0] == "side":
            _bars(axis, report)
        else:
            _map(axis, report)
    for axis in panels[len(drawn) :]:
        axis.set_axis_off()
    save(figure, path)


def _bars(axis: Any, report: Report) -> None:
    """Medians with the range from the 10th to the 90th percentile, and the ratio to Sync."""

    def column(name: str) -> list[Any]:
        at = report.columns.index(name)
        return [row[at] for row in report.rows]

    medians, low, high = column("median"), column("p10"), column("p90")
    below = [middle - least for middle, least in zip(medians, low, strict=True)]
    above = [most - middle for middle, most in zip(medians, high, strict=True)]
    bars = axis.bar(column("side"), medians, yerr=[below, above], capsize=4, color="tab:blue")
    ratios = ["" if ratio is None else f"{ratio:.2f}×" for ratio in column("× sync")]
    axis.bar_label(bars, ratios, label_type="center", color="white")
    axis.set(ylabel="ms, median")


def _map(axis: Any, report: Report) -> None:
    """The choice for each context length and wait."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    order = [name[0].upper() for name in COLOURS]
    cells = [[order.index(choice) for choice in row[3:]] for row in report.rows]
    colours = ListedColormap(list(COLOURS.values()))
    axis.imshow(cells, cmap=colours, vmin=0, vmax=2, origin="lower", aspect="auto")
    axis.set_xticks(range(len(report.columns) - 3), report.columns[3:])
    axis.set_yticks(range(len(report.rows)), [str(row[0]) for row in report.rows])
    axis.set(xlabel="expected wait (ms)", ylabel="tokens of context")
    axis.legend(
        handles=[Patch(color=colour, label=name) for name, colour in COLOURS.items()],
        fontsize="small",
    )
