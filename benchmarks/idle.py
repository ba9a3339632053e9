"""`idle`: what instances cost that do nothing but wait.

Memory is what the control process has for itself (unique set size): pages of the image that no
instance has written to are shared by all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import anyio
import psutil

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import BenchServer, bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig

CPU_GOAL = 1.0  # percent of a core
MEMORY_GOALS = {"python": 2.5}  # MB of an instance
FOREVER = "3000"  # seconds


@dataclass(frozen=True, kw_only=True)
class Settings:
    """CPU time and memory of instances that wait, as programs do between a client's messages."""

    model: ModelConfig = options.model()
    languages: tuple[str, ...] = options.languages()
    instances: int = options.count("--instances", 896, "Instances that wait.")
    seconds: float = options.real("--seconds", 10.0, "For how long CPU time is measured.")


class Idle(NamedTuple):
    """Figures of the control process."""

    megabytes: float  # for each instance
    cpu_percent: float  # of a core, with all of them
    cpu_percent_alone: float  # without any


async def _percent(control: psutil.Process, seconds: float) -> float:
    before: float = sum(control.cpu_times()[:2])
    start = time.perf_counter()
    await anyio.sleep(seconds)
    spent: float = sum(control.cpu_times()[:2]) - before
    return 100 * spent / (time.perf_counter() - start)


async def _measure(server: BenchServer, program: bytes, settings: Settings) -> Idle:
    control = psutil.Process(server.pid)
    async with Client(server.endpoint) as client:
        digest = await client.upload(program, name="bench")
        await (await client.launch(digest, ["idle", "0"])).result()
        await anyio.sleep(1)  # until what is started ahead is there
        alone = await _percent(control, settings.seconds)
        before = control.memory_full_info().uss
        instances = [
            await client.launch(digest, ["idle", FOREVER]) for _ in range(settings.instances)
        ]
        await anyio.sleep(1)
        together = await _percent(control, settings.seconds)
        grown = control.memory_full_info().uss - before
        for instance in instances:
            await instance.cancel()
    return Idle(grown / settings.instances / 1e6, together, alone)


def idle(settings: Settings, progress: Progress) -> Report:
    """Measures idle instances, each language against a server of its own."""
    progress.expect(len(settings.languages))
    rows: list[list[object]] = []
    goals = []
    model = with_room(settings.model, settings.instances, 16)
    for language, program in bench_programs(settings.languages).items():
        with bench_server(model) as server:
            found = anyio.run(_measure, server, program, settings)
        rows.append([language, settings.instances, *found])
        goals.append(Goal(f"{language}, CPU, % of a core", found.cpu_percent, CPU_GOAL))
        if language in MEMORY_GOALS:
            what = f"{language}, memory of an instance, MB"
            goals.append(Goal(what, found.megabytes, MEMORY_GOALS[language]))
        progress(language)
    return Report(
        "Idle instances: what the control process pays for them",
        ["source", "instances", "MB each", "CPU, %", "CPU with none, %"],
        rows,
        [f"CPU time over {settings.seconds:g} s, in percent of one core."],
        goals,
    )


BENCHMARK = Benchmark(Settings, idle)
