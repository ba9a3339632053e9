"""`intercept`: what becomes of memory while requests wait for tools (InferCept, section 6).

Six kinds of augmentation, and six traces on which different simple policies are best; Poisson
arrivals, less memory than all requests want. The baseline is `vllm`: a call ends the request, which
comes back as a new one. Two parts: the real system, programs on a server; and a simulator with the
server's own policies, in the time that a cost model says, for ranges of load that the machine at
hand cannot show.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.interception.on_traces import real_traces, simulated_traces
from benchmarks.interception.real import real
from benchmarks.interception.settings import Settings
from benchmarks.interception.simulated import simulated
from benchmarks.plots import plot_path, pyplot, save
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Report


def intercept(settings: Settings, progress: Progress) -> list[Report]:
    """Measures the parts that are asked for, and draws them."""
    progress.expect(settings.steps)
    drawing = settings.plot_file
    path = None if drawing is None else plot_path(drawing, "interception")
    reports, of_traces = [], []
    for part, rated, traced in (
        ("real", real, real_traces),
        ("simulated", simulated, simulated_traces),
    ):
        if part in settings.parts and "augmentations" in settings.loads:
            reports.append(rated(settings, progress))
        if part in settings.parts and "traces" in settings.loads:
            of_traces.append(traced(settings, progress))
    if path is not None and reports:
        plot(reports, path)
    return reports + of_traces


def plot(reports: Sequence[Report], path: Path) -> None:
    """Draws latency, completed requests and wasted memory against the rate, one row of plots per
    report.

    Raises:
        RuntimeError: if matplotlib is not there, or the file can't be written.
    """
    figure, axes = pyplot().subplots(
        len(reports), 3, figsize=(14, 4 * len(reports)), squeeze=False, layout="constrained"
    )
    for plots, report in zip(axes, reports, strict=True):
        wasted = "memory wasted %" if "memory wasted %" in report.columns else "restarted"
        for axis, column in zip(plots, ("ms per token", "completed/s", wasted), strict=True):
            at = report.columns.index(column)
            for system in dict.fromkeys(row[0] for row in report.rows):
                points = [(one[1], one[at]) for one in report.rows if one[0] == system]
                axis.plot(*zip(*points, strict=True), marker="o", markersize=4, label=system)
            axis.set(xlabel="arrivals a second", ylabel=column)
        plots[0].set(title=report.title, yscale="log")
        plots[0].title.set_fontsize("medium")
        plots[0].legend()
    save(figure, path)


BENCHMARK = Benchmark(Settings, intercept)
