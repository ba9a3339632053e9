"""`python -m benchmarks starts`: programs that do nearly nothing, from the request to the result.

What is left is what a launch costs: one after the other, and many at once. The server knows the
programs already.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import anyio
import psutil

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.programs import bench_programs
from pie_py.bench.report import Goal, Report, percentile
from pie_py.bench.server import BenchServer, bench_server, with_room
from pie_py.build.modules import read_modules
from pie_py.client import Client
from pie_py.config.model import ModelConfig
from pie_py.config.shipped_files import shipped_folder
from pie_py.wire.modules import pack

TRIVIAL_PROGRAM = Path(__file__).parent / "trivial_guest.py"
TRIVIAL, COMPONENT, LIBRARY = "trivial source", "component", "AsyncLM --help"
GOALS_MS = {TRIVIAL: 2.5, COMPONENT: 1.0}  # median, one after the other
GOALS_RATE = {TRIVIAL: 600.0}  # launches a second, AT_ONCE together
AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Settings:
    """From the request to launch to the result, of programs that do nearly nothing."""

    model: ModelConfig = options.model()
    launches: int = options.count("--launches", 200, "Launches one after the other, of a round.")
    at_once: int = options.count("--at-once", AT_ONCE, "Launches together.")
    rounds: int = options.rounds(3)


class Case(NamedTuple):
    """A program and its arguments."""

    program: bytes
    args: list[str]


@dataclass
class Times:
    """Figures of one program, of all rounds."""

    alone_ms: list[float]
    rates: list[float]  # launches a second, together
    cpu_ms: list[float]  # of the control process for a launch, together


def _cases() -> dict[str, Case]:
    library = pack(read_modules(shipped_folder("inferlets") / "async_function_calling" / "main.py"))
    return {
        TRIVIAL: Case(TRIVIAL_PROGRAM.read_bytes(), []),
        COMPONENT: Case(bench_programs(["rust"])["rust"], ["idle", "0"]),
        LIBRARY: Case(library, ["--help"]),
    }


async def _alone(client: Client, program: str, args: list[str], count: int) -> list[float]:
    times = []
    for _ in range(count):
        start = time.perf_counter()
        instance = await client.launch(program, args)
        await instance.result()
        times.append((time.perf_counter() - start) * 1e3)
    return times


async def _together(client: Client, program: str, args: list[str], count: int) -> float:
    """Seconds until all have ended."""

    async def one() -> None:
        await (await client.launch(program, args)).result()

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(one)
    return time.perf_counter() - start


async def _measure(
    server: BenchServer, cases: dict[str, Case], settings: Settings, progress: Progress
) -> dict[str, Times]:
    control = psutil.Process(server.pid)
    found = {name: Times([], [], []) for name in cases}
    async with Client(server.endpoint) as client:
        programs = {
            name: await client.upload(case.program, name="bench") for name, case in cases.items()
        }
        for turn in range(-1, settings.rounds):  # the first warms up
            for name, program in programs.items():
                args = cases[name].args
                alone = await _alone(client, program, args, settings.launches)
                before = sum(control.cpu_times()[:2])
                seconds = await _together(client, program, args, settings.at_once)
                cpu = sum(control.cpu_times()[:2]) - before
                if turn >= 0:
                    found[name].alone_ms += alone
                    found[name].rates.append(settings.at_once / seconds)
                    found[name].cpu_ms.append(cpu / settings.at_once * 1e3)
                progress(name)
    return found


def starts(settings: Settings, progress: Progress) -> Report:
    """Measures launches against a server of its own."""
    cases = _cases()
    progress.expect(1 + len(cases) * (settings.rounds + 1))
    model = with_room(settings.model, settings.at_once, 16)
    with bench_server(model) as server:
        progress("the server runs")
        found = anyio.run(_measure, server, cases, settings, progress)
    rows: list[list[object]] = []
    goals = []
    for name, times in found.items():
        alone, rate = statistics.median(times.alone_ms), statistics.median(times.rates)
        slowest = percentile(times.alone_ms, 0.9)
        rows.append([name, alone, slowest, rate, statistics.median(times.cpu_ms)])
        if name in GOALS_MS:
            goals.append(Goal(f"{name}, one after the other, ms", alone, GOALS_MS[name]))
        if name in GOALS_RATE and settings.at_once == AT_ONCE:
            what = f"{name}, {AT_ONCE} at once, launches/s"
            goals.append(Goal(what, rate, GOALS_RATE[name], at_most=False))
    return Report(
        "Starts: request to result of programs that do nearly nothing",
        ["program", "alone p50, ms", "alone p90, ms", "together, /s", "together, CPU ms each"],
        rows,
        [
            f"Alone: one after the other, {settings.launches} a round; together:"
            f" {settings.at_once} at once; CPU is the control process's, all threads.",
        ],
        goals,
    )


BENCHMARK = Benchmark(Settings, starts)
