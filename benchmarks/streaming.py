"""`streaming`: text to many clients, sent piece by piece by the programs or by the server.

The worker is the measuring device of `capacity`: all that is left is the control process, with the
messages to its clients. These are instances of one client here, which reads on the other core.
"""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import dataclass
from typing import NamedTuple

import anyio
import psutil

from benchmarks.capacity import DEVICE
from benchmarks.turns import Turns
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.decoding import begin_together
from pie_py.bench.programs import bench_programs, random_prompt
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import BenchServer, bench_server
from pie_py.client import Client, Instance
from pie_py.config.model import ModelConfig

GOAL, GOAL_AT = 40_000.0, 256  # tokens per second, clients
BY_PROGRAM = "by-program"  # option of `stream`
SIDES = {"program": (BY_PROGRAM,), "server": ()}


@dataclass(frozen=True, kw_only=True)
class Settings(Turns):
    """Tokens per second of text that is streamed to clients, with a worker that answers at once."""

    model: ModelConfig = options.model("tiny")
    at_once: tuple[int, ...] = options.at_once("256")
    rounds: int = options.rounds(3)
    tokens: int = options.tokens(256)


class Streamed(NamedTuple):
    """One run's figures."""

    tokens_a_second: float
    cpu_us_a_token: float  # of the control process, everything in it
    tokens_a_message: float


async def _measure(
    server: BenchServer, turns: Settings, program: bytes, count: int, side: str
) -> Streamed:
    control = psutil.Process(server.pid)
    messages: list[int] = []

    async def read(instance: Instance) -> None:
        messages.append(len([message async for message in instance]))
        await instance.result()

    async with Client(server.endpoint) as client:
        digest = await client.upload(program, name="bench")
        vocabulary = (await client.models())[0]["vocab_size"]
        prompts = [random_prompt(turns.prompt, vocabulary, random.random()) for _ in range(count)]
        arguments = [["stream", text, str(turns.tokens), *SIDES[side]] for text in prompts]
        instances, start = await begin_together(client, digest, arguments)
        await anyio.sleep(max(0.0, (start - time.monotonic_ns()) / 1e9))
        before = sum(control.cpu_times()[:2])
        async with anyio.create_task_group() as tasks:
            for instance in instances:
                tasks.start_soon(read, instance)
        seconds = (time.monotonic_ns() - start) / 1e9
        cpu = sum(control.cpu_times()[:2]) - before
    tokens = count * turns.tokens
    return Streamed(tokens / seconds, cpu / tokens * 1e6, tokens / sum(messages))


def streaming(turns: Settings, progress: Progress) -> Report:
    """Measures both ways, in turns."""
    progress.expect(1 + len(turns.languages) * len(turns.at_once) * (turns.rounds + 1) * len(SIDES))
    found: dict[tuple[str, int, str], list[Streamed]] = {}
    with bench_server(turns.model, worker_module=DEVICE) as server:
        progress("the server runs")
        programs = bench_programs(turns.languages)
        for turn in range(-1, turns.rounds):
            for language, program in programs.items():
                for count in turns.at_once:
                    for side in SIDES:
                        figures = anyio.run(_measure, server, turns, program, count, side)
                        if turn >= 0:
                            found.setdefault((language, count, side), []).append(figures)
                        progress(f"{language}, {count} at once, by the {side}")
    rows: list[list[object]] = []
    goals = []
    for (language, count, side), runs in found.items():
        figures = Streamed(*map(statistics.median, zip(*runs, strict=True)))
        rows.append([language, side, count, *figures])
        if side == "server" and count == GOAL_AT:
            what = f"tokens/s to {count} clients, {language}"
            goals.append(Goal(what, figures.tokens_a_second, GOAL, at_most=False))
    return Report(
        "Text streamed to clients: tokens per second with a worker that answers at once",
        ["guest", "sent by the", "clients", "tokens/s", "CPU µs per token", "tokens a message"],
        rows,
        [
            f"Medians of {turns.rounds} rounds; {turns.prompt} prompt and {turns.tokens} new tokens"
            " each. Until the last message has arrived; all clients are one process."
        ],
        goals,
    )


BENCHMARK = Benchmark(Settings, streaming)
