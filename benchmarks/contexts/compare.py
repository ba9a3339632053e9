"""Tokens per second of forks and own contexts of one instance, over those of as many instances.

Beam search, best of n, trees and votes are programs with many contexts. One of them should get as
much out of the server as that many programs with one context each.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import anyio

from benchmarks.capacity import DEVICE
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.decoding import Decoded, go_together
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import BenchServer, bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig

GUEST = Path(__file__).parent / "guest.py"
INSTANCES, FORKS, OWN = "instances", "forks", "own contexts"
WAYS = (INSTANCES, FORKS, OWN)
WORKERS = {"the model": None, "no model": DEVICE}  # the second answers at once: control alone


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One program with many contexts beside as many programs with one: tokens per second."""

    model: ModelConfig = options.model("tiny")
    at_once: tuple[int, ...] = options.number_list("--at-once", "8,32", "Contexts in all.")
    rounds: int = options.rounds(5)
    prompt: int = options.prompt()
    tokens: int = options.tokens(64)


class Rates(NamedTuple):
    """One run's figures."""

    tokens_a_second: float
    rows_a_plan: float  # forward passes of one context each in a plan


async def _measure(server: BenchServer, way: str, count: int, settings: Settings) -> Rates:
    each = ["own", "1"] if way == INSTANCES else ["forks" if way == FORKS else "own", str(count)]
    arguments = [*each, str(settings.prompt), str(settings.tokens)]
    launches = count if way == INSTANCES else 1
    async with Client(server.endpoint) as client:
        digest = await client.upload(GUEST.read_bytes(), name="contexts")

        async def counters() -> tuple[int, int]:
            (stats,) = (await client.stats()).values()
            return stats["commands"]["forward"], stats["batches"]["forward"]

        before = await counters()
        found = await go_together(client, digest, [arguments] * launches)
        after = await counters()
    decoded = Decoded([times for instance in found for times in instance])
    forwards, batches = (b - a for a, b in zip(before, after, strict=True))
    return Rates(decoded.tokens / decoded.seconds, forwards / batches)


def compare(settings: Settings, progress: Progress) -> Report:
    """Measures the three ways in turns, with the model and with a worker that answers at once."""
    progress.expect(len(WORKERS) * (1 + len(settings.at_once) * (settings.rounds + 1) * len(WAYS)))
    report = Report(
        "One program with many contexts over as many programs with one, tokens per second",
        ["worker", "contexts", "way", "tokens/s", "× instances", "forwards a batch"],
        notes=[
            f"Medians of {settings.rounds} rounds in turns; Python guests; {settings.prompt} prompt"
            f" and {settings.tokens} new tokens each, greedy, none of them cached before.",
            "no model: the worker answers at once, so that only the control process is measured.",
        ],
    )
    model = with_room(settings.model, 2 * max(settings.at_once), settings.prompt + settings.tokens)
    for name, module in WORKERS.items():
        chosen = {} if module is None else {"worker_module": module}
        with bench_server(model, **chosen) as server:
            progress(f"{name}: the server runs")
            runs = _in_turns(server, settings, progress)
        _add_rows(report, name, runs)
    return report


def _in_turns(
    server: BenchServer, settings: Settings, progress: Progress
) -> dict[tuple[int, str], list[Rates]]:
    """Figures of all rounds by contexts and way; a round before them warms up."""
    found: dict[tuple[int, str], list[Rates]] = {}
    for turn in range(-1, settings.rounds):
        for count in settings.at_once:
            for way in WAYS:
                run = anyio.run(_measure, server, way, count, settings)
                if turn >= 0:
                    found.setdefault((count, way), []).append(run)
                progress(f"{count} {way}")
    return found


def _add_rows(report: Report, worker: str, runs: dict[tuple[int, str], list[Rates]]) -> None:
    for (count, way), own in runs.items():
        rate = statistics.median(run.tokens_a_second for run in own)
        base = statistics.median(run.tokens_a_second for run in runs[count, INSTANCES])
        together = statistics.median(run.rows_a_plan for run in own)
        report.rows.append([worker, count, way, rate, rate / base, together])
        if way != INSTANCES:
            what = f"{worker}, {count} {way} of one program over {count} programs, tokens/s"
            report.goals.append(Goal(what, rate / base, 1.0, at_most=False))


BENCHMARK = Benchmark(Settings, compare)
