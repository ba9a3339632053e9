"""`pie-py bench policies`: throughput under the scheduler's policies (Pie, section 7.4, table 5).

The fixed policies depend on their constant; each is measured at several, and held to its best.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import anyio

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.decoding import decode_in
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.server import ModelConfig, SchedulerConfig

# How far ahead the adaptive policy should be, of each at its best (Pie's own figures).
GOALS = {"eager": 15.0, "k-only": 2.8, "t-only": 1.09}
WARM_UP = 8  # tokens of each, before any that count: the first steps of a server take longer


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Throughput of the adaptive policy against eager, k-only and t-only."""

    model: ModelConfig = options.model("tiny")
    language: str = options.language()
    instances: int = options.count("--instances", 128, "Inferlets that decode.")
    ks: tuple[int, ...] = options.number_list("--k", "32,64,128", "Constants of k-only.")
    ts_ms: tuple[int, ...] = options.number_list("--t-ms", "1,2,5,10", "Constants of t-only, ms.")
    rounds: int = options.rounds(3)
    prompt: int = options.prompt()
    tokens: int = options.tokens(32)


def policies(settings: Settings, progress: Progress) -> Report:
    """Measures each policy against a server of its own, in turns."""
    program = bench_programs([settings.language])[settings.language]
    count, prompt, tokens = settings.instances, settings.prompt, settings.tokens
    model = with_room(settings.model, count, prompt + tokens)
    cases = [
        ("adaptive", "", SchedulerConfig()),
        ("eager", "", SchedulerConfig(policy="eager")),
        *(("k-only", f"k = {k}", SchedulerConfig(policy="k-only", k=k)) for k in settings.ks),
        *(
            ("t-only", f"t = {t} ms", SchedulerConfig(policy="t-only", t_ms=t))
            for t in settings.ts_ms
        ),
    ]
    progress.expect(settings.rounds * len(cases))
    rates: list[list[float]] = [[] for _ in cases]
    for _ in range(settings.rounds):
        for (policy, constant, scheduler), found in zip(cases, rates, strict=True):
            with bench_server(model, scheduler=scheduler) as server:
                anyio.run(decode_in, server.endpoint, program, count, prompt, WARM_UP)
                run = anyio.run(decode_in, server.endpoint, program, count, prompt, tokens)
            found.append(run.tokens / run.seconds)
            progress(f"{policy} {constant}")
    medians = [statistics.median(found) for found in rates]
    best: dict[str, float] = {}
    for (policy, _, _), rate in zip(cases, medians, strict=True):
        best[policy] = max(rate, best.get(policy, 0.0))
    rows: list[list[object]] = [
        [policy, constant, rate, best["adaptive"] / rate]
        for (policy, constant, _), rate in zip(cases, medians, strict=True)
    ]
    return Report(
        f"Policies: tokens a second, {count} {settings.language} inferlets",
        ["policy", "constant", "tokens/s", "adaptive is ahead by"],
        rows,
        [f"Medians of {settings.rounds} rounds; {prompt} prompt and {tokens} new tokens each."],
        [
            Goal(
                f"adaptive over {policy} at its best", best["adaptive"] / best[policy], limit, False
            )
            for policy, limit in GOALS.items()
        ],
    )


BENCHMARK = Benchmark(Settings, policies)
