"""`intercept`: what becomes of memory while requests wait for tools (InferCept, section 6).

Six traces on which different simple policies are best; Poisson arrivals, less memory than all
requests want. The baseline is `vllm`: a call ends the request, which comes back as a new one. Two
parts: the real system, programs on a server; and a simulator with the server's own policies, in the
time that a cost model says, for ranges of load that the machine at hand cannot show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.interception.real import SYSTEMS, serve
from benchmarks.interception.simulation import Machine, Simulation
from benchmarks.interception.traces import TRACES, Request, Trace, trace_requests
from pie_control.interception.costs import Costs
from pie_control.interception.policy import load_policy
from pie_py.bench.report import Goal, Report
from pie_py.config.model import ModelConfig

PARTS = ("real", "simulated")
SIMULATED = ("vllm", "discard", "preserve", "swap", "min-waste")
REAL = {system.name: system for system in SYSTEMS}
TRACE_NAMES = tuple(trace.name for trace in TRACES)
NEAR = 1.05  # times the best system's latency that min-waste may have, on each trace
MEMORY, HOST = 60_000, 240_000  # tokens that fit on the simulated device, and beside it
# A model of 6 billion parameters (GPT-J's shape) in 16 bits on an A100, reckoned from what the
# hardware is specified to do, not measured: 0.4 of the peak in prefill, 20 GB/s to the host.
GPTJ_A100: dict[str, Any] = {
    "page_bytes": 16 * 28 * 2 * 4096 * 2,
    "page_size": 16,
    "swap_out": {"seconds": 5e-5, "bytes_per_second": 2e10},
    "swap_in": {"seconds": 5e-5, "bytes_per_second": 2e10},
    "prefill": {
        "tokens": [16, 64, 128, 256, 512, 1024, 2048],
        "seconds": [0.018, 0.0228, 0.0297, 0.0436, 0.072, 0.13, 0.254],
        "fit": [0.016, 1.0e-4, 8e-9],
    },
    "decode": {"sequences": [1, 8, 32, 128], "seconds": [0.0105, 0.0135, 0.024, 0.066]},
}

Latencies = Callable[[str, Trace, int], list[float]]  # of a system, a trace, a seed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Memory while requests wait for tools: vLLM's way, discard, preserve, swap, min-waste."""

    model: ModelConfig = options.model("tiny")
    parts: tuple[str, ...] = options.some_of(
        "--part", PARTS, PARTS, "The real system, the simulator, or both (the default)."
    )
    systems: tuple[str, ...] = options.some_of(
        "--system",
        tuple(REAL),
        tuple(REAL),
        "Sides of the comparison; all by default. `unaware`: programs do nothing, the server does.",
    )
    traces: tuple[str, ...] = options.some_of(
        "--trace", TRACE_NAMES, TRACE_NAMES, "Of the six; all by default."
    )
    seeds: int = options.count("--trace-seeds", 2, "Seeds of traces, drawn for each run.")
    seconds: float = options.real(
        "--trace-seconds", 120.0, "How long requests of traces arrive; simulated."
    )
    speed: float = options.real("--trace-speed", 8.0, "Of arrivals in traces; real.")
    requests: int = options.count("--requests", 32, "Requests of each trace; real.")
    kv_pages: int = options.count("--kv-pages", 160, "Of the KV pool; real.", least=8)
    host_pages: int = options.count("--host-pages", 1024, "Of host memory; real.", least=0)
    time_scale: float = options.real("--time-scale", 0.05, "Of the calls' durations; real.")
    token_scale: float = options.real("--token-scale", 0.1, "Of lengths; real.")


def intercept(settings: Settings, progress: Progress) -> list[Report]:
    """Each trace under each system, with every seed."""
    parts = {
        "real": (f"{settings.requests} requests on the real system", REAL, _real(settings)),
        "simulated": (f"{settings.seconds:g} s, simulated", SIMULATED, _simulated(settings)),
    }
    chosen = [parts[part] for part in PARTS if part in settings.parts]
    sides = sum(len(set(systems) & set(settings.systems)) for _, systems, _ in chosen)
    progress.expect(sides * len(settings.traces))
    seeds = SystemRandom().sample(range(1, 1_000_000), settings.seeds)
    return [
        _report(
            title,
            [s for s in systems if s in settings.systems],
            latencies,
            settings,
            seeds,
            progress,
        )
        for title, systems, latencies in chosen
    ]


def _real(settings: Settings) -> Latencies:
    """On servers of their own, with as little memory as is wanted."""
    pools = {"kv_pages": settings.kv_pages, "host_pages": settings.host_pages}
    model = settings.model.model_copy(update=pools)

    def latencies(system: str, trace: Trace, seed: int) -> list[float]:
        scales = {"times": settings.time_scale, "lengths": settings.token_scale}
        rate = settings.speed * trace.rate
        load = trace_requests(trace, settings.requests, seed, rate, **scales)
        return serve(model, REAL[system], load, seed)

    return latencies


def _simulated(settings: Settings) -> Latencies:
    """In simulated time, with requests arriving for a while."""

    def latencies(system: str, trace: Trace, seed: int) -> list[float]:
        count = math.ceil(settings.seconds * trace.rate)
        return simulated_latencies(system, trace_requests(trace, count, seed, trace.rate))

    return latencies


def simulated_latencies(system: str, load: Sequence[Request]) -> list[float]:
    """Seconds per generated token, without the calls, of each request.

    In `vllm` and `discard`, which differ in the order alone (InferCept's *ImprovedDiscard*), a step
    computes whole contexts or decodes; in the others it does both, in chunks.
    """
    machine = Machine(
        Costs.measured(GPTJ_A100),
        MEMORY,
        HOST,
        tail=system == "vllm",
        chunked=system not in ("vllm", "discard"),
        within_budget=system != "swap",
    )
    policy = load_policy("discard" if system == "vllm" else system)
    return [one["latency"] for one in Simulation(list(load), machine, policy).run().finished]


def _report(
    title: str,
    systems: Sequence[str],
    latencies: Latencies,
    settings: Settings,
    seeds: Sequence[int],
    progress: Progress,
) -> Report:
    report = Report(
        f"Interception, {Path(settings.model.source).name}: traces of {title}",
        ["trace", "system", "ms per token", "lowest", "highest"],
        notes=[
            f"Seeds, drawn for this run: {', '.join(map(str, seeds))}. ms per token: in the mean"
            " over a seed's requests, and over the seeds; lowest and highest: of one seed."
        ],
    )
    for trace in (each for each in TRACES if each.name in settings.traces):
        means: dict[str, float] = {}
        for system in systems:
            found = [1e3 * statistics.mean(latencies(system, trace, seed)) for seed in seeds]
            means[system] = statistics.mean(found)
            report.rows.append([trace.name, system, means[system], min(found), max(found)])
            progress(f"{system}, {trace.name}")
        ours = means.pop("min-waste", None)
        if means and ours is not None:
            what = f"min-waste's latency over the best other's, {trace.name}"
            report.goals.append(Goal(what, ours / min(means.values()), NEAR))
    return report


BENCHMARK = Benchmark(Settings, intercept)
