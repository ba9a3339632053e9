"""`guest-rules`: one rule for choosing tokens as a device program, and in the guest step by step.

The guest sees the 256 likeliest tokens of each step and chooses one of them; as a device program
the rule sees all of them, and no guest is woken. Both take turns at one server.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from benchmarks.turns import pairs_in_turns
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig

GUEST = Path(__file__).parent / "guest.py"
GOAL = 3.0  # times the tokens per second, at the most that run at once
PROMPT = "A long time ago there was a king who"
LONGEST = 512  # tokens of a text


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A rule where the model runs, beside the same rule in the guest."""

    model: ModelConfig = options.model("pie-tiny")
    tokens: int = options.tokens(256)
    at_once: tuple[int, ...] = options.at_once("1,8,32")
    rounds: int = options.rounds(5)


def compare(settings: Settings, progress: Progress) -> Report:
    """Measures both at each number, in turns."""
    progress.expect(len(settings.at_once) * (settings.rounds + 1))
    most = max(settings.at_once)
    with bench_server(with_room(settings.model, most, LONGEST)) as server:
        found = anyio.run(_all, server.endpoint, settings, progress)
    report = Report(
        "A rule as a device program, and in the guest step by step: tokens per second",
        ["at once", "in the guest", "device program", "gain"],
        notes=[
            f"Mirostat in Python, {settings.tokens} tokens; medians of {settings.rounds} turns."
        ],
    )
    for at_once, (in_guest, on_device) in found.items():
        gain = statistics.median(a / b for a, b in zip(in_guest, on_device, strict=True))
        count = at_once * settings.tokens
        rates = [count / statistics.median(side) for side in (in_guest, on_device)]
        report.rows.append([at_once, *rates, gain])
        if at_once == most:
            report.goals.append(Goal(f"gain, {at_once} at once", gain, GOAL, at_most=False))
    return report


async def _all(
    endpoint: str, settings: Settings, progress: Progress
) -> dict[int, tuple[list[float], list[float]]]:
    """Seconds of the rounds in the guest and on the device, by how many ran at once."""
    found: dict[int, tuple[list[float], list[float]]] = {}
    async with Client(endpoint) as client:
        program = await client.upload(GUEST.read_bytes(), name="guest-rules")

        async def run(at_once: int, on_device: bool) -> float:
            job = {"prompt": PROMPT, "tokens": settings.tokens, "on_device": on_device}
            start = time.perf_counter()
            launched = [await client.launch(program, [json.dumps(job)]) for _ in range(at_once)]
            for instance in launched:
                await instance.result()
            return time.perf_counter() - start

        for at_once in settings.at_once:
            found[at_once] = await pairs_in_turns(
                partial(run, at_once),
                (False, True),
                settings.rounds,
                progress,
                f"{at_once} at once",
            )
    return found


BENCHMARK = Benchmark(Settings, compare)
