"""The six traces under each system, simulated and on the real system, with seeds of this run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.interception.load import Request
from benchmarks.interception.real import SYSTEMS, serve, small_memory
from benchmarks.interception.settings import SIMULATED, Settings
from benchmarks.interception.simulated import simulated_costs, simulated_latencies
from benchmarks.interception.traces import TRACES, Trace, fresh_seeds, trace_requests
from pie_py.bench.benchmark import Progress
from pie_py.bench.report import Goal, Report

NEAR = 1.05  # times the best system's latency that min-waste may have, on each trace

Latencies = Callable[[str, Sequence[Request], int], list[float]]  # of a system, a load, a seed


def simulated_traces(settings: Settings, progress: Progress) -> Report:
    """In simulated time, with requests arriving for a while."""
    costs = simulated_costs(settings)

    def loads(trace: Trace, seed: int) -> list[Request]:
        count = math.ceil(settings.trace_seconds * trace.rate)
        return trace_requests(trace, count, seed, trace.rate)

    def latencies(system: str, load: Sequence[Request], seed: int) -> list[float]:
        return simulated_latencies(system, costs, settings, load)

    title = f"Interception, simulated: traces of {settings.trace_seconds:g} s"
    return _report(title, SIMULATED, settings, progress, loads, latencies)


def real_traces(settings: Settings, progress: Progress) -> Report:
    """On servers of their own."""
    model = small_memory(settings)
    systems = {system.name: system for system in SYSTEMS}

    def loads(trace: Trace, seed: int) -> list[Request]:
        rate = settings.trace_speed * trace.rate
        scales = {"times": settings.time_scale, "lengths": settings.token_scale}
        return trace_requests(trace, settings.requests, seed, rate, **scales)

    def latencies(system: str, load: Sequence[Request], seed: int) -> list[float]:
        return serve(model, systems[system], load, seed).latencies

    title = (
        f"Interception, the real system: traces of {settings.requests} requests,"
        f" {Path(model.source).name}, {model.kv_pages} pages"
    )
    return _report(title, tuple(systems), settings, progress, loads, latencies)


def _report(
    title: str,
    systems: Sequence[str],
    settings: Settings,
    progress: Progress,
    loads: Callable[[Trace, int], list[Request]],
    latencies: Latencies,
) -> Report:
    """Each trace under each system, with every seed."""
    seeds = fresh_seeds(settings.trace_seeds)
    rows: list[list[object]] = []
    goals: list[Goal] = []
    for trace in (each for each in TRACES if each.name in settings.traces):
        means: dict[str, float] = {}
        for system in systems:
            if system not in settings.systems:
                continue
            found = [
                1e3 * statistics.mean(latencies(system, loads(trace, seed), seed)) for seed in seeds
            ]
            means[system] = statistics.mean(found)
            rows.append([trace.name, system, means[system], min(found), max(found)])
            progress(f"{system}, {trace.name}")
        others = [mean for system, mean in means.items() if system != "min-waste"]
        if others and "min-waste" in means:
            what = f"min-waste's latency over the best other's, {trace.name}"
            goals.append(Goal(what, means["min-waste"] / min(others), NEAR))
    return Report(
        title,
        ["trace", "system", "ms per token", "lowest", "highest"],
        rows,
        [
            f"Seeds, drawn for this run: {', '.join(map(str, seeds))}. ms per token: in the mean"
            " over a seed's requests, and over the seeds; lowest and highest: of one seed."
        ],
        goals,
    )
