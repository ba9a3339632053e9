"""`http-load`: many connections at once, clients that hang up, and clients that do not read.

Beside the last the worker is the measuring device of `capacity`, which answers at once: what they
cost shows in the control process and the gateway. All clients are this process.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import aclosing
from dataclasses import dataclass

from benchmarks.capacity import DEVICE
from benchmarks.http.gateway import Served, ask, gateway_server, stream
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import with_room
from pie_py.config.model import ModelConfig

PROMPT = 32  # tokens
READERS = 8  # that read all the time
FLAT = 1.1  # memory after a third round over that after the second
GONE_GOAL = 1.0  # seconds until the instances of clients that have hung up are gone
SLOWER_GOAL = 0.9  # of the readers' speed alone
LONG = 16_000  # tokens
SMALL = 4096  # bytes that the operating system keeps for a client that does not read


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Connections that stream at once, that hang up, and that do not read."""

    model: ModelConfig = options.model("tiny")
    connections: int = options.count("--connections", 1000)
    slow: int = options.count("--slow", 32, "Clients that do not read.")
    tokens: int = options.count("--tokens", 16, "Of each stream.")
    seconds: float = options.real("--seconds", 8.0, "That the slow readers are there.")


def load(settings: Settings, progress: Progress) -> Report:
    """Measures all three."""
    progress.expect(10)
    report = Report(
        "Connections to the gateway",
        ["clients", "seconds", "s until all is gone", "MB of both", "events/s of 8 readers"],
        notes=[f"{settings.tokens} tokens a stream; MB: control process and gateway, at the end."],
    )
    model = with_room(settings.model, settings.connections, 4 * PROMPT)
    with gateway_server(model, max_instances=4096) as served:
        progress("the server runs")
        asyncio.run(_many(served, settings, report, progress))
    with gateway_server(settings.model, worker_module=DEVICE) as served:
        progress("the server with the measuring device runs")
        asyncio.run(_beside_idle(served, settings, report, progress))
    return report


async def _many(served: Served, settings: Settings, report: Report, progress: Progress) -> None:
    """All connections read their streams; then all hang up."""
    for name, one in (("stream at once", _read), ("hang up", _hang_up)):
        memory = []
        for _ in range(3):
            began = time.monotonic()
            work = (one(served, settings.tokens) for _ in range(settings.connections))
            await asyncio.gather(*work)
            seconds = time.monotonic() - began
            gone = await _all_gone(served)
            memory.append(served.rss_mb)
            progress(f"{settings.connections} {name}")
        row = [f"{settings.connections} {name}", seconds, gone, memory[-1], None]
        report.rows.append(row)
        growth = memory[2] / memory[1]
        report.goals.append(Goal(f"{name}: memory after 3 rounds over 2", growth, FLAT))
    report.goals.append(Goal("seconds until instances are gone", gone, GONE_GOAL))


async def _beside_idle(
    served: Served, settings: Settings, report: Report, progress: Progress
) -> None:
    """Some read, alone and then beside others that do not."""
    alone = await _speed(served, settings)
    readers = f"{READERS} that read"
    report.rows.append([readers, settings.seconds, None, served.rss_mb, alone])
    progress("readers alone")
    idle = [asyncio.create_task(_occupy(served)) for _ in range(settings.slow)]
    stalled = await _tokens_stand_still(served)
    progress(f"{settings.slow} that do not read have what is kept for them")
    beside = await _speed(served, settings)
    memory = served.rss_mb
    for task in idle:
        task.cancel()
    await asyncio.gather(*idle, return_exceptions=True)
    gone = await _all_gone(served)
    name = f"{readers} beside {settings.slow} that do not"
    report.rows.append([name, settings.seconds, gone, memory, beside])
    report.notes.append(f"Of those that do not read {stalled} instances were held up.")
    what = "speed beside clients that do not read"
    report.goals.append(Goal(what, beside / alone, SLOWER_GOAL, at_most=False))


async def _tokens_stand_still(served: Served) -> int:
    """Waits until no token is generated; returns how many instances are alive then."""
    before = -1
    while True:
        stats = await ask(served.url, "GET", "/v1/stats")
        tokens = sum(model["commands"]["sample"] for model in stats.values())
        if tokens == before:
            alive: int = (await ask(served.url, "GET", "/v1/server"))["instances"]
            return alive
        before = tokens
        await asyncio.sleep(1)


def _prompt() -> list[int]:
    return [random.randrange(10, 8000) for _ in range(PROMPT)]


async def _read(served: Served, tokens: int) -> None:
    """Reads a stream to its end."""
    async for _ in stream(served.url, _prompt(), tokens):
        pass


async def _hang_up(served: Served, tokens: int) -> None:
    """Leaves once the first token is there."""
    async with aclosing(stream(served.url, _prompt(), LONG)) as parts:
        async for events in parts:
            if events:
                return


async def _occupy(served: Served) -> None:
    """Begins a long stream and reads nothing of it."""
    async for events in stream(served.url, _prompt(), LONG, receive_bytes=SMALL):
        if events:
            await asyncio.Event().wait()


async def _speed(served: Served, settings: Settings) -> float:
    """Events per second of some readers together."""
    count = 0

    async def read() -> None:
        nonlocal count
        while True:
            async for events in stream(served.url, _prompt(), settings.tokens):
                count += events

    readers = [asyncio.create_task(read()) for _ in range(READERS)]
    await asyncio.sleep(1)
    before, began = count, time.monotonic()
    await asyncio.sleep(settings.seconds)
    speed = (count - before) / (time.monotonic() - began)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return speed


async def _all_gone(served: Served) -> float:
    """Seconds until no instance is alive."""
    began = time.monotonic()
    while (await ask(served.url, "GET", "/v1/server"))["instances"]:
        await asyncio.sleep(0.02)
    return time.monotonic() - began


BENCHMARK = Benchmark(Settings, load)
