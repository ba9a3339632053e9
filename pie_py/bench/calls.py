"""`pie-py bench calls`: what a call costs that the control layer answers, seen from a guest."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import anyio

from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client, Instance
from pie_py.config.server import ModelConfig

PAPER = "Paper: under 30 µs for a call that the control layer answers."
IDLE_SECONDS = "600"


async def _measure(
    endpoint: str,
    programs: dict[str, bytes],
    live_counts: Sequence[int],
    count: int,
    progress: Callable[[str], None],
) -> list[list[object]]:
    rows: list[list[object]] = []
    async with Client(endpoint) as client:
        for language, program in programs.items():
            digest = await client.upload(program, name="bench")
            for live in live_counts:
                idle: list[Instance] = []
                for _ in range(live - 1):
                    idle.append(await client.launch(digest, ["idle", IDLE_SECONDS]))
                instance = await client.launch(digest, ["calls", str(count)])
                medians: dict[str, float] = json.loads(await instance.result())
                rows += [[language, live, name, ns / 1e3] for name, ns in medians.items()]
                progress(f"{language}, {live} instances live")
                async with anyio.create_task_group() as tasks:
                    for other in idle:
                        tasks.start_soon(other.cancel)
    return rows


def calls(
    model: ModelConfig,
    live_counts: Sequence[int],
    languages: Sequence[str],
    count: int,
    progress: Callable[[str], None],
) -> Report:
    """Measures calls against a server of its own."""
    programs = bench_programs(languages)
    with bench_server(with_room(model, 8, 64)) as server:
        progress("the server runs")
        rows = anyio.run(_measure, server.endpoint, programs, live_counts, count, progress)
    return Report(
        "A call that the control layer answers, µs (median)",
        ["guest", "instances live", "call", "µs"],
        rows,
        [PAPER],
    )
