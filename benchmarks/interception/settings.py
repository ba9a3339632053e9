"""Shared by both parts of `intercept`: options, names of the sides, the table's latencies."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.interception.traces import TRACES
from benchmarks.plots import plot_file
from pie_py.bench import options
from pie_py.bench.report import percentile
from pie_py.config.model import ModelConfig

GUEST = Path(__file__).parent / "guest.py"
PARTS = ("real", "simulated")
TRACE_NAMES = tuple(trace.name for trace in TRACES)
SIMULATED = ("vllm", "discard", "preserve", "swap", "min-waste")
SIDES = (*SIMULATED, "unaware")
LOADS = ("augmentations", "traces")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Memory while requests wait for tools: vLLM's way, discard, preserve, swap, min-waste."""

    model: ModelConfig = options.model("tiny")
    parts: tuple[str, ...] = options.some_of(
        "--part", PARTS, PARTS, "The real system, the simulator, or both (the default)."
    )
    systems: tuple[str, ...] = options.some_of(
        "--system",
        SIDES,
        SIDES,
        "Sides of the comparison; all by default. `unaware`: programs do nothing, the server does.",
    )
    loads: tuple[str, ...] = options.some_of(
        "--load",
        LOADS,
        LOADS,
        "Six kinds of augmentation at several rates, six traces of long and short contexts and"
        " calls, or both (the default).",
    )
    traces: tuple[str, ...] = options.some_of(
        "--trace", TRACE_NAMES, TRACE_NAMES, "Of the six; all by default."
    )
    seed: int = options.option("--seed", type=int, default=1)
    trace_seeds: int = options.count("--trace-seeds", 2, "Seeds of traces, drawn for each run.")
    trace_seconds: float = options.real(
        "--trace-seconds", 120.0, "How long requests of traces arrive; simulated."
    )
    trace_speed: float = options.real("--trace-speed", 8.0, "Of arrivals in traces; real.")
    plot_file: str | None = plot_file()
    requests: int = options.count("--requests", 32, "Requests at each rate; real.")
    rates: tuple[float, ...] = options.rate_list("--rates", "4,8", "Arrivals a second; real.")
    kv_pages: int = options.count("--kv-pages", 160, "Of the KV pool; real.", least=8)
    host_pages: int = options.count("--host-pages", 1024, "Of host memory; real.", least=0)
    time_scale: float = options.real("--time-scale", 0.05, "Of the calls' durations; real.")
    token_scale: float = options.real("--token-scale", 0.1, "Of lengths; real.")
    sim_seconds: float = options.real(
        "--sim-seconds", 400.0, "How long requests arrive; simulated."
    )
    sim_rates: tuple[float, ...] = options.rate_list(
        "--sim-rates", "0.2,0.35,0.5,0.7,1,1.4", "Arrivals a second; simulated."
    )
    sim_memory: int = options.count(
        "--sim-memory", 60_000, "Tokens that fit on the device; simulated.", least=4096
    )
    sim_host: int = options.count(
        "--sim-host", 240_000, "Tokens that fit beside it; simulated.", least=0
    )
    sim_costs: str = options.one_of(
        "--sim-costs",
        ("gptj-a100", "measured"),
        "gptj-a100",
        "Computed from specifications, or as this machine's worker measures the model.",
    )

    @property
    def steps(self) -> int:
        """How many runs there are."""
        traces = len(self.traces) * ("traces" in self.loads)
        rated = "augmentations" in self.loads
        real = (len(self.rates) * rated + traces) * len(set(self.systems))
        known = len(set(self.systems) & set(SIMULATED))
        simulated = (len(self.sim_rates) * rated + traces) * known
        return real * ("real" in self.parts) + simulated * ("simulated" in self.parts)


def milliseconds(latencies: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean, median and 90th percentile of seconds, in milliseconds."""
    if not latencies:
        return None, None, None
    middle, high = statistics.median(latencies), percentile(latencies, 0.9)
    return 1e3 * statistics.mean(latencies), 1e3 * middle, 1e3 * high
