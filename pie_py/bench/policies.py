"""`pie-py bench policies`: throughput under the scheduler's policies (Pie, section 7.4, table 5).

The fixed policies depend on their constant; each is measured at several, and held to its best.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import anyio

from pie_py.bench.decoding import decode_in
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.server import ModelConfig, SchedulerConfig

# How far ahead the adaptive policy should be, of each at its best (Pie's own figures).
GOALS = {"eager": 15.0, "k-only": 2.8, "t-only": 1.09}
WARM_UP = 8  # tokens of each, before any that count: the first steps of a server take longer


def policies(
    model: ModelConfig,
    count: int,
    language: str,
    ks: Sequence[int],
    ts_ms: Sequence[int],
    rounds: int,
    prompt: int,
    tokens: int,
    progress: Callable[[str], None],
) -> Report:
    """Measures each policy against a server of its own, in turns."""
    program = bench_programs([language])[language]
    model = with_room(model, count, prompt + tokens)
    cases = [
        ("adaptive", "", SchedulerConfig()),
        ("eager", "", SchedulerConfig(policy="eager")),
        *(("k-only", f"k = {k}", SchedulerConfig(policy="k-only", k=k)) for k in ks),
        *(("t-only", f"t = {t} ms", SchedulerConfig(policy="t-only", t_ms=t)) for t in ts_ms),
    ]
    rates: list[list[float]] = [[] for _ in cases]
    for _ in range(rounds):
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
        f"Policies: tokens a second, {count} {language} inferlets",
        ["policy", "constant", "tokens/s", "adaptive is ahead by"],
        rows,
        [f"Medians of {rounds} rounds; {prompt} prompt and {tokens} new tokens each."],
        [
            Goal(
                f"adaptive over {policy} at its best", best["adaptive"] / best[policy], limit, False
            )
            for policy, limit in GOALS.items()
        ],
    )
