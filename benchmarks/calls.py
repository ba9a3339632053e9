"""`python -m benchmarks calls`: a call that the control layer answers, seen from a guest."""

from __future__ import annotations

import json
from dataclasses import dataclass

import anyio

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client, Instance
from pie_py.config.model import ModelConfig

PAPER = "Paper: under 30 µs for a call that the control layer answers."
IDLE_SECONDS = "600"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a call costs that the control layer answers, seen from a guest."""

    model: ModelConfig = options.model()
    languages: tuple[str, ...] = options.languages()
    live: tuple[int, ...] = options.number_list("--live", "1,896", "Instances that live.")
    count: int = options.count("--count", 20_000, "Calls of each function.", least=100)


async def _measure(
    endpoint: str, programs: dict[str, bytes], settings: Settings, progress: Progress
) -> list[list[object]]:
    rows: list[list[object]] = []
    async with Client(endpoint) as client:
        for language, program in programs.items():
            digest = await client.upload(program, name="bench")
            for live in settings.live:
                idle: list[Instance] = []
                for _ in range(live - 1):
                    idle.append(await client.launch(digest, ["idle", IDLE_SECONDS]))
                instance = await client.launch(digest, ["calls", str(settings.count)])
                medians: dict[str, float] = json.loads(await instance.result())
                rows += [[language, live, name, ns / 1e3] for name, ns in medians.items()]
                progress(f"{language}, {live} instances live")
                async with anyio.create_task_group() as tasks:
                    for other in idle:
                        tasks.start_soon(other.cancel)
    return rows


def calls(settings: Settings, progress: Progress) -> Report:
    """Measures calls against a server of its own."""
    progress.expect(1 + len(settings.languages) * len(settings.live))
    programs = bench_programs(settings.languages)
    with bench_server(with_room(settings.model, 8, 64)) as server:
        progress("the server runs")
        rows = anyio.run(_measure, server.endpoint, programs, settings, progress)
    return Report(
        "A call that the control layer answers, µs (median)",
        ["guest", "instances live", "call", "µs"],
        rows,
        [PAPER],
    )


BENCHMARK = Benchmark(Settings, calls)
