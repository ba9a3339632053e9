"""`durable`: what it costs that an instance goes on after a crash, and how long it takes to go on.

Plain and durable instances run in turns on one server. An instance that goes on is killed and
resumed, which makes its program again over its journal; the start of a server comes on top. Those
that sleep are one agent's journal under many names, which a server finds when it starts.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import anyio
import psutil

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import BenchServer, bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig

PROGRAM = b"""
from inferlet import Context, Model, Sampler, runtime, session

async def main(tokens: int = 0, calls: int = 0, contexts: int = 0, prompt: int = 0) -> str:
    model = Model.load()
    kept = []
    await session.receive()
    for number in range(contexts):
        context = Context(model).fill(f"{number}" + " once" * prompt)
        sampler = Sampler(seed=number)
        await context.generate(sampler, max_tokens=tokens, stop=()).collect_tokens()
        kept.append(context)
    began = runtime.monotonic()
    for _ in range(calls):
        runtime.now()
    session.send(str(runtime.monotonic() - began))
    while (line := await session.receive()) != "end":
        session.send(line)
    return "done"
"""

AGENT = b"""
from inferlet import Context, Model, Sampler, session

async def main() -> str:
    context = Context(Model.load()).fill("Once upon a time there was a dog called Max.")
    line = ""
    while True:
        text = await context.generate(Sampler(seed=1), max_tokens=16).collect_text()
        session.send(f"{line}: {text}")
        line = await session.receive()
        context.fill(line)
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Durable instances beside plain ones: tokens per second, time of a call, time to go on."""

    model: ModelConfig = options.model()
    instances: int = options.count("--instances", 32, "That generate at once.")
    tokens: int = options.count("--tokens", 200, "That each generates.")
    calls: int = options.count("--calls", 10_000, "Calls of the clock that one makes.")
    rounds: int = options.count("--rounds", 5, "Of plain and durable ones in turn.")
    sleepers: int = options.count("--sleepers", 10_000, "Agents that sleep.")
    woken: int = options.count("--woken", 50, "Of these, that are asked something.")


async def _together(client: Client, digest: str, settings: Settings, *, durable: bool) -> float:
    """Tokens per second of some instances that generate at once."""
    args = ["--tokens", str(settings.tokens), "--contexts", "1", "--prompt", "16"]
    instances = [
        await client.launch(digest, args, durable=durable) for _ in range(settings.instances)
    ]
    await anyio.sleep(0.5)  # until each waits
    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for instance in instances:
            tasks.start_soon(instance.send, "go")
    for instance in instances:
        await instance.receive()
    seconds = time.perf_counter() - began
    for instance in instances:
        await instance.send("end")
        await instance.result()
    return settings.instances * settings.tokens / seconds


async def _call(client: Client, digest: str, settings: Settings, *, durable: bool) -> float:
    """Microseconds of a call."""
    args = ["--calls", str(settings.calls)]
    instance = await client.launch(digest, args, durable=durable)
    await instance.send("go")
    seconds = float(await instance.receive() or 0)
    await instance.send("end")
    await instance.result()
    return 1e6 * seconds / settings.calls


async def _go_on(client: Client, digest: str, settings: Settings) -> float:
    """Seconds from the wish that an instance goes on to its answer."""
    args = ["--tokens", "300", "--contexts", "8", "--prompt", "700"]
    instance = await client.launch(digest, [*args, "--calls", str(settings.calls)], durable=True)
    await instance.send("go")
    await instance.receive()
    await instance.cancel()
    async for _ in instance:
        pass
    began = time.perf_counter()
    await client.resume(instance.id)
    again = await client.attach(instance.id)
    await again.send("ping")
    while await again.receive() != "ping":
        pass
    seconds = time.perf_counter() - began
    await again.cancel()
    return seconds


class Sleeping(NamedTuple):
    """Many agents that sleep."""

    megabytes: float  # of the control process
    start: float  # seconds of the server's start
    answers: list[float]  # seconds


async def _fall_asleep(server: BenchServer) -> str:
    async with Client(server.endpoint) as client:
        program = await client.upload(AGENT, name="agent")
        agent = await client.launch(program, durable=True)
        await agent.receive()
        while (await client.instances())[0]["state"] != "asleep":
            await anyio.sleep(0.1)
        return agent.id


async def _ask(server: BenchServer, names: list[str]) -> list[float]:
    found = []
    async with Client(server.endpoint) as client:
        for name in names:
            agent = await client.attach(name)
            began = time.perf_counter()
            await agent.send(" Then")
            while not str(await agent.receive()).startswith(" Then"):
                pass
            found.append(time.perf_counter() - began)
            await agent.detach()
    return found


def _sleeping(settings: Settings) -> Sleeping:
    model = with_room(settings.model, settings.woken + 2, 256)
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        data = {"data_folder": Path(folder)}
        with bench_server(model, durable={"idle_seconds": 0.5}, **data) as server:
            agent = anyio.run(_fall_asleep, server)
        journal = Path(folder) / "journals" / f"{agent}.journal"
        text = journal.read_bytes()
        names = [f"agent-{number:05}" for number in range(settings.sleepers)]
        for name in names:
            journal.with_name(f"{name}.journal").write_bytes(text)
        began = time.perf_counter()
        with bench_server(model, **data) as server:
            start = time.perf_counter() - began
            size = psutil.Process(server.pid).memory_info().rss / 1e6
            asked = random.Random(1).sample(names, min(settings.woken, len(names)))
            return Sleeping(size, start, anyio.run(_ask, server, asked))


async def _measure(
    server: BenchServer, settings: Settings, progress: Progress
) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in range(5)]
    async with Client(server.endpoint) as client:
        digest = await client.upload(PROGRAM, name="durable")
        for number in range(settings.rounds):
            for column, measure in enumerate((_together, _call)):
                for durable in (False, True):
                    value = await measure(client, digest, settings, durable=durable)
                    found[2 * column + durable].append(value)
            found[4].append(await _go_on(client, digest, settings))
            progress(f"round {number + 1}")
    return found


def durable(settings: Settings, progress: Progress) -> Report:
    """Measures on one server, plain and durable instances in turns."""
    progress.expect(settings.rounds)
    with bench_server(with_room(settings.model, settings.instances, 1024)) as server:
        found = anyio.run(_measure, server, settings, progress)
    slept = _sleeping(settings)
    plain, lasting, call, written, go_on = map(median, found)
    ratio = median(a / b for a, b in zip(found[1], found[0], strict=True))
    return Report(
        "Durable instances",
        ["figure", "plain", "durable"],
        [
            [f"tokens/s of {settings.instances} at once", plain, lasting],
            ["microseconds of a call of the clock", call, written],
            [f"seconds to go on: {settings.calls} calls, 8 contexts of 1000 tokens", None, go_on],
            [f"MB of the control process, {settings.sleepers} asleep", None, slept.megabytes],
            ["seconds of a server's start with these", None, slept.start],
            ["seconds until one of these answers", None, median(slept.answers)],
        ],
        ["Medians; the ratio of tokens/s is that of each round."],
        [
            Goal("durable tokens/s, of plain ones", ratio, 0.98, at_most=False),
            Goal("microseconds that a call costs more", written - call, 20.0),
            Goal("seconds to go on", go_on, 1.0),
            Goal("MB of the control process with those asleep", slept.megabytes, 1000.0),
            Goal("seconds until the slowest of these answers", max(slept.answers), 0.3),
        ],
    )


BENCHMARK = Benchmark(Settings, durable)
