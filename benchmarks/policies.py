"""`policies`: throughput of the adaptive scheduling policy over eager (Pie, section 7.4, table 5).

The baseline is `eager`, which sends every command at once by itself.
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
from pie_py.config.model import ModelConfig

GOAL = 15.0  # throughput of adaptive over eager (Pie)
WARM_UP = 8  # tokens of each, before any that count: the first steps of a server take longer


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Throughput of the adaptive policy against eager."""

    model: ModelConfig = options.model("tiny")
    language: str = options.language()
    instances: int = options.count("--instances", 128, "Inferlets that decode.")
    rounds: int = options.rounds(3)
    prompt: int = options.prompt()
    tokens: int = options.tokens(32)


def policies(settings: Settings, progress: Progress) -> Report:
    """Measures each policy against a server of its own, in turns."""
    program = bench_programs([settings.language])[settings.language]
    count, prompt, tokens = settings.instances, settings.prompt, settings.tokens
    model = with_room(settings.model, count, prompt + tokens)
    rates: dict[str, list[float]] = {"adaptive": [], "eager": []}
    progress.expect(settings.rounds * len(rates))
    for _ in range(settings.rounds):
        for policy, found in rates.items():
            with bench_server(model, scheduler={"policy": policy}) as server:
                anyio.run(decode_in, server.endpoint, program, count, prompt, WARM_UP)
                run = anyio.run(decode_in, server.endpoint, program, count, prompt, tokens)
            found.append(run.tokens / run.seconds)
            progress(policy)
    medians = {policy: statistics.median(found) for policy, found in rates.items()}
    ahead = {policy: medians["adaptive"] / rate for policy, rate in medians.items()}
    return Report(
        f"Policies: tokens a second, {count} {settings.language} inferlets",
        ["policy", "tokens/s", "adaptive is ahead by"],
        [[policy, rate, ahead[policy]] for policy, rate in medians.items()],
        [f"Medians of {settings.rounds} rounds; {prompt} prompt and {tokens} new tokens each."],
        [Goal("adaptive over eager", ahead["eager"], GOAL, at_most=False)],
    )


BENCHMARK = Benchmark(Settings, policies)
