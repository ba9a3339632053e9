"""`run-ahead`: generations that queue their next steps before a token is known, on and off.

The gain is what the worker would have waited between two steps (xLLM's bubble), so it shows where
steps are short: with the checkpoint `tiny`. The tokens are the same either way.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import NamedTuple

import anyio

from benchmarks.turns import Turns
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.decoding import STEP_BY_STEP, decode_in
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.model import ModelConfig

GOAL = 1.17  # throughput on over off, where steps are short (xLLM)


@dataclass(frozen=True, kw_only=True)
class Settings(Turns):
    """Generations that queue steps before the last token is known, against step by step."""

    model: ModelConfig = options.model("tiny")
    at_once: tuple[int, ...] = options.at_once("1,8,32")
    rounds: int = options.rounds(5)


class Rates(NamedTuple):
    """Tokens per second of two generations, one after the other."""

    ahead: float
    step_by_step: float


def run_ahead(turns: Settings, progress: Progress) -> Report:
    """Measures generations that run ahead, and the same ones step by step, in turns."""
    progress.expect(turns.steps)
    model = with_room(turns.model, max(turns.at_once), turns.prompt + turns.tokens)
    with bench_server(model) as server:
        progress("the server runs")

        def rate(program: bytes, count: int, *options: str) -> float:
            run = anyio.run(
                decode_in, server.endpoint, program, count, turns.prompt, turns.tokens, *options
            )
            return run.tokens / run.seconds

        def both(program: bytes, count: int) -> Rates:
            return Rates(rate(program, count), rate(program, count, STEP_BY_STEP))

        found = turns.measure(both, progress)
    report = Report(
        "Running ahead: tokens per second while all decode",
        ["guest", "at once", "ahead", "step by step", "gain"],
        notes=[
            f"Medians of {turns.rounds} rounds in turns; {turns.prompt} prompt, {turns.tokens} new"
            " tokens."
        ],
    )
    for (language, count), rates in found.items():
        on, off = (statistics.median(side) for side in zip(*rates, strict=True))
        report.rows.append([language, count, on, off, on / off])
        what = f"throughput ahead over step by step, {language}, {count} at once"
        report.goals.append(Goal(what, on / off, GOAL, at_most=False))
    return report


BENCHMARK = Benchmark(Settings, run_ahead)
