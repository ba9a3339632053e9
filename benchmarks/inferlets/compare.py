"""`inferlets`: programs of the library beside client-side scripts of the same logic.

Both sides use one server and model. The script sends a request for each step over an OpenAI-style
endpoint, ours, which knows the beginnings of prompts by its prefix cache. Each request takes a
round trip more, which is added here; a program takes one, for its launch and result. Tools
are as far from the script as from the server, and take their time.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import click

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.http.gateway import http_gateway
from benchmarks.inferlets import scripts
from benchmarks.inferlets.endpoint import Endpoint
from benchmarks.inferlets.pairs import PAIRS, Pair
from benchmarks.inferlets.servers import tool_server
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server
from pie_py.client import Client
from pie_py.config.http import HttpConfig
from pie_py.config.model import ModelConfig

MODEL = "pie-tiny"
LIBRARY = Path(__file__).parents[2] / "inferlets"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Programs of the library beside the same logic as a script of a client."""

    only: tuple[str, ...] = options.some_of(
        "--only",
        tuple(PAIRS),
        tuple(PAIRS),
        "Which logic; all unless given. Repeatable.",
    )
    round_trips: tuple[int, ...] = options.option(
        "--round-trip",
        multiple=True,
        default=[0, 10, 50],
        type=click.IntRange(0),
        help="Milliseconds that are added to each request; 0, 10 and 50 unless given. Repeatable.",
    )
    at_once: int = options.count("--at-once", 8, "Streams of requests for the throughput.")
    rounds: int = options.rounds(5)
    tool: int = options.count("--tool", 20, "Milliseconds that a tool takes.", 0)
    prefix_cache: bool = options.option(
        "--prefix-cache/--no-prefix-cache",
        default=True,
        help="Whether the server finds beginnings of prompts that it has computed before.",
    )
    endpoint: str | None = options.option(
        "--endpoint", metavar="URL", help="An OpenAI-style server of pie-tiny, for the scripts."
    )


Run = Callable[[float], Awaitable[Any]]  # one run, with seconds of a round trip


@dataclass
class Times:
    """The times of one side."""

    seconds: list[float] = field(default_factory=list)  # of runs, one at a time
    a_second: float = 0.0  # runs, of several streams

    @property
    def latency(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)


def inferlets(settings: Settings, progress: Progress) -> Report:
    """Measures each pair at each round trip: runs one at a time, in turns, then streams of them."""
    progress.expect(1 + len(settings.only) * len(settings.round_trips))
    with ExitStack() as stack:
        tools = stack.enter_context(tool_server(settings.tool / 1000))
        http = HttpConfig.model_validate(
            {"allow": ["127.0.0.1:*"], "allow_networks": ["127.0.0.0/8"]}
        )
        model = ModelConfig(source=MODEL, kv_pages=4096)
        cache = {"enabled": settings.prefix_cache}
        server = stack.enter_context(bench_server(model, http=http, prefix_cache=cache))
        url, theirs = settings.endpoint, "endpoint"
        if url is None:
            url = stack.enter_context(http_gateway(server.endpoint)).url
            theirs = "our own endpoint"
        progress("servers are up")
        places = _Places(server.endpoint, url, tools)
        found = anyio.run(_measure_all, settings, places, progress)
    return _report(settings, found, theirs)


@dataclass(frozen=True)
class _Places:
    server: str
    endpoint: str
    tools: str


async def _measure_all(
    settings: Settings, places: _Places, progress: Progress
) -> dict[tuple[str, int], tuple[Times, Times]]:
    found = {}
    async with Client(places.server) as client:
        for name in settings.only:
            pair = PAIRS[name]
            # `swarm` launches itself by its name.
            path = LIBRARY / pair.program / "main.py"
            digest = await client.upload(path, name=pair.program)
            async with Endpoint(places.endpoint, places.tools, MODEL) as endpoint:
                ours = _program(client, digest, pair, places.tools)
                theirs = _script(endpoint, pair)
                told = await ours(0), await theirs(0)
                if not _same(*told):
                    raise RuntimeError("{}: program: {}; script: {}".format(name, *told))
                for milliseconds in settings.round_trips:
                    found[name, milliseconds] = await _measure(
                        settings, ours, theirs, milliseconds / 1000
                    )
                    progress(f"{name}, {milliseconds} ms")
    return found


def _program(client: Client, digest: str, pair: Pair, tools: str) -> Run:
    """The program: one round trip."""
    given = list(pair.flags) + (["--url", tools] if pair.tools else [])
    for option, value in pair.options.items():
        values = value if isinstance(value, list) else [value]
        given += [f"--{option.replace('_', '-')}", *map(str, values)]

    async def run(round_trip: float) -> Any:
        await anyio.sleep(round_trip)
        instance = await client.launch(digest, given)
        sent = [str(piece) async for piece in instance]
        result = await instance.result()
        return json.loads(result) if result else "".join(sent)

    return run


def _script(endpoint: Endpoint, pair: Pair) -> Run:
    """The script: a round trip for each request."""
    script = getattr(scripts, pair.program)

    async def run(round_trip: float) -> Any:
        endpoint.round_trip = round_trip
        return await script(endpoint, **pair.options)

    return run


def _same(ours: Any, theirs: Any) -> bool:
    """True if a program's result says the same as the script's, as far as that goes."""
    if isinstance(theirs, dict):
        return not theirs or all(ours[key] == value for key, value in theirs.items())
    return bool(ours == theirs)


async def _measure(
    settings: Settings, ours: Run, theirs: Run, round_trip: float
) -> tuple[Times, Times]:
    times = Times(), Times()
    for _ in range(settings.rounds):
        for run, side in zip((ours, theirs), times, strict=True):
            start = time.perf_counter()
            await run(round_trip)
            side.seconds.append(time.perf_counter() - start)
    for run, side in zip((ours, theirs), times, strict=True):
        each = max(1, settings.rounds // 2)

        async def stream(run: Run = run, each: int = each) -> None:
            for _ in range(each):
                await run(round_trip)

        start = time.perf_counter()
        async with anyio.create_task_group() as group:
            for _ in range(settings.at_once):
                group.start_soon(stream)
        side.a_second = settings.at_once * each / (time.perf_counter() - start)
    return times


def _report(
    settings: Settings, found: dict[tuple[str, int], tuple[Times, Times]], theirs: str
) -> Report:
    report = Report(
        f"Programs beside client-side scripts over {theirs}"
        + ("" if settings.prefix_cache else " without a prefix cache"),
        [
            "logic",
            "round trip, ms",
            "program, ms",
            "script, ms",
            "latency, ×",
            "program, runs/s",
            "script, runs/s",
            "throughput, ×",
        ],
        notes=[
            f"Medians of {settings.rounds} runs in turns; throughput of {settings.at_once} streams."
            f" Round trips are added; tools take {settings.tool} ms. × is script over program for"
            " latency, program over script for throughput: above 1 the program is better."
        ],
    )
    for (name, milliseconds), (ours, script) in found.items():
        report.rows.append(
            [
                name,
                milliseconds,
                ours.latency * 1000,
                script.latency * 1000,
                script.latency / ours.latency,
                ours.a_second,
                script.a_second,
                ours.a_second / script.a_second,
            ]
        )
    return report


BENCHMARK = Benchmark(Settings, inferlets)
