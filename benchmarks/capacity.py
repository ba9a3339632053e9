"""`capacity`: how many tokens per second the control layer can serve.

The worker is a measuring device that answers at once (`benchmarks.instant_worker`), so all that is
left is the control process: guests, calls, scheduler, messages. It is one thread; its CPU time per
token tells what one core can do.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import NamedTuple

import anyio

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.decoding import AT_ONCE, LOOKING, STEP_BY_STEP, cpu_seconds
from benchmarks.programs import bench_programs
from pie_py.bench.decoding import decode_together
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import BenchServer, bench_server
from pie_py.client import Client
from pie_py.config.model import ModelConfig

GOALS, GOAL_AT = {"at once": 100_000.0, "token by token": 20_000.0}, 256  # tokens/s, inferlets
FLAT_GOAL = 1.25  # most expensive token over the cheapest, among the counts from FLAT_FROM on
FLAT_FROM = 8
DEVICE = "benchmarks.instant_worker"
# How programs read what they generate: all at the end of a run, token by token as the run goes on,
# or without a run, each token before the next is asked for: chosen by the server, or by the program
# from the distribution of the 256 most likely ones.
READINGS = {
    "at once": AT_ONCE,
    "token by token": "",
    "step by step": STEP_BY_STEP,
    "each distribution": LOOKING,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Tokens per second of the control layer alone: its worker is a device that answers at once."""

    model: ModelConfig = options.model("tiny")
    languages: tuple[str, ...] = options.languages()
    prompt: int = options.prompt()
    at_once: tuple[int, ...] = options.at_once("8,32,128,256,512,896")
    readings: tuple[str, ...] = options.some_of(
        "--reading", tuple(READINGS), tuple(READINGS), "How programs read; all unless given."
    )
    rounds: int = options.rounds(3)
    tokens: int = options.tokens(512)


class Capacity(NamedTuple):
    """One run's figures."""

    tokens_a_second: float
    cpu_us_a_token: float  # of the control process, everything in it, while all decode


async def measure(
    server: BenchServer, program: bytes, count: int, reading: str, prompt: int, tokens: int
) -> Capacity:
    """One run of so many inferlets, which read as `READINGS` says; `DEVICE` is the worker."""
    async with Client(server.endpoint) as client:
        digest = await client.upload(program, name="bench")
        spent: list[float] = []

        def note() -> None:
            spent.append(cpu_seconds(server.pid))

        decoded = await decode_together(
            client,
            digest,
            count,
            prompt,
            tokens,
            *filter(None, [READINGS[reading]]),
            before_go=note,
        )
        note()
    total = count * tokens
    # All of them: where nothing is computed, the first may be done before the last have begun.
    seconds = (max(own[-1] for own in decoded.times) - min(own[0] for own in decoded.times)) / 1e9
    return Capacity(total / seconds, (spent[1] - spent[0]) / total * 1e6)


def capacity(turns: Settings, progress: Progress) -> Report:
    """Measures the control layer against a worker that answers at once."""
    cases = len(turns.languages) * len(turns.at_once) * len(turns.readings)
    progress.expect(1 + cases * (turns.rounds + 1))
    found: dict[tuple[str, str, int], list[Capacity]] = {}
    with bench_server(turns.model, worker_module=DEVICE) as server:
        progress("the server runs")
        programs = bench_programs(turns.languages)
        each = list(itertools.product(programs, turns.readings, turns.at_once))
        for turn in range(-1, turns.rounds):
            for language, reading, count in each:
                program = programs[language]
                figures = anyio.run(
                    measure, server, program, count, reading, turns.prompt, turns.tokens
                )
                if turn >= 0:
                    found.setdefault((language, reading, count), []).append(figures)
                progress(f"{language}, {count} at once, read {reading}")
    rows: list[list[object]] = []
    cost: dict[tuple[str, str], dict[int, float]] = {}
    goals = []
    for (language, reading, count), runs in found.items():
        rate = statistics.median(run.tokens_a_second for run in runs)
        cpu = statistics.median(run.cpu_us_a_token for run in runs)
        rows.append([language, reading, count, rate, 1e6 / rate, cpu])
        cost.setdefault((language, reading), {})[count] = 1e6 / rate
        if count == GOAL_AT and reading in GOALS:
            what = f"tokens/s, {language}, {count} inferlets that read {reading}"
            goals.append(Goal(what, rate, GOALS[reading], at_most=False))
    for (language, reading), costs in cost.items():
        many = {count: us for count, us in costs.items() if count >= FLAT_FROM}
        if len(many) > 1 and reading == "token by token":
            counts = f"{min(many)} to {max(many)} inferlets"
            what = f"most expensive token over the cheapest, {language}, {counts}"
            goals.append(Goal(what, max(many.values()) / min(many.values()), FLAT_GOAL))
    return Report(
        "Control layer: tokens per second with a worker that answers at once (no model runs)",
        ["guest", "read", "at once", "tokens/s", "µs per token", "CPU µs per token"],
        rows,
        [
            f"Medians of {turns.rounds} rounds; {turns.prompt} prompt and {turns.tokens} new tokens"
            " each.",
            "CPU is the control process's own, all threads, from when all are ready, so with what"
            " it takes to begin and to end; where it is less than µs per token, it waited for a"
            " core.",
        ],
        goals,
    )


BENCHMARK = Benchmark(Settings, capacity)
