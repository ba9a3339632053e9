"""`inferlets`: programs of the library beside client-side scripts of the same logic.

Both sides use one server and model. The script sends a request for each step over an OpenAI-style
endpoint: ours, which knows the beginnings of prompts by its prefix cache, or vLLM's. Each request
takes a round trip more, which is added here; a program takes one, for its launch and result. Tools
are as far from the script as from the server, and take their time.
"""

from __future__ import annotations

import importlib
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

from benchmarks import peers
from benchmarks.compare import checkpoint_facts
from benchmarks.inferlets.endpoint import Endpoint
from benchmarks.inferlets.plots import plot
from benchmarks.inferlets.servers import http_gateway, tool_server, vllm_endpoint
from benchmarks.plots import plot_file, plot_path
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Report
from pie_py.bench.server import bench_server
from pie_py.client import Client
from pie_py.config.http import HttpConfig
from pie_py.config.model import ModelConfig

LIBRARY = Path(__file__).parents[2] / "inferlets"
QUESTION = "Where does the neighbour of the brother of Edgar live?"
NUMBERS = [12, 34, 56, 78, 11, 23, 45, 67]
APIS = ["play_man~48(text)", "recress_roof~19(rank)", "cook_plan~73(colour)", "buy_hen~28(rank)"]
REQUEST = '- play_man with text "strazyrt".\n- recress_roof with rank 7.'
PRINT = r"print\([1-9][0-9]{1,3} [-+*] [1-9][0-9]{1,3}\)\n"


@dataclass(frozen=True)
class Pair:
    """A program and a script, with the options that both take."""

    program: str
    options: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # of the program alone
    tools: bool = False


_AGENT = {"apis": APIS, "request": REQUEST}
PAIRS = {
    "text completion": Pair("text_completion", {"prompt": "Once upon a time", "max_tokens": 64}),
    "prefix caching": Pair(
        "prefix_caching",
        {"prefix": " Rena lives in Swoosuk." * 40, "prompt": " Rena lives in", "max_tokens": 16},
    ),
    "beam search": Pair("beam_search", {"prompt": "The capital of", "width": 4, "max_tokens": 12}),
    "tree of thought": Pair(
        "tree_of_thought",
        {"question": "What is 880 - 826?", "branches": 4, "best": 2, "depth": 5},
    ),
    "recursion of thought": Pair("recursion_of_thought", {"numbers": NUMBERS}),
    "graph of thought": Pair("graph_of_thought", {"numbers": NUMBERS[:4]}),
    "skeleton of thought": Pair(
        "skeleton_of_thought",
        {"prompt": "Write about a fox, a hen and a bear.", "points": 4, "max_tokens": 16},
    ),
    "ReAct": Pair("react", {"question": QUESTION}, tools=True),
    "CodeAct": Pair("code_act", {"task": "What is 478 * 356?", "grammar": PRINT, "steps": 8}),
    "Swarm": Pair(
        "swarm",
        {"agents": ["ada", "bob"], "task": "Once upon a time", "rounds": 6, "max_tokens": 8},
    ),
    "API agent": Pair("api_agent", _AGENT, tools=True),
    "API agent, cached": Pair("api_agent", _AGENT, ("--cache",), tools=True),
    "API agent, cached, early": Pair("api_agent", _AGENT, ("--cache", "--early"), tools=True),
    "API agent, cached, early, dropped": Pair(
        "api_agent", _AGENT, ("--cache", "--early", "--drop"), tools=True
    ),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Programs of the library beside the same logic as a script of a client."""

    only: tuple[str, ...] = options.some_of(
        "--only", tuple(PAIRS), tuple(PAIRS), "Which logic; all unless given. Repeatable."
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
    endpoint: str | None = options.option(
        "--endpoint", metavar="URL", help="An OpenAI-style server of pie-tiny, for the scripts."
    )
    vllm_python: str | None = peers.vllm_python()
    plot: str | None = plot_file()


Run = Callable[[float], Awaitable[Any]]  # one run, with seconds of a round trip


@dataclass
class Times:
    """What one side took."""

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
        model = ModelConfig(source="pie-tiny", kv_pages=4096)
        server = stack.enter_context(bench_server(model, http=http))
        name = "pie-tiny"
        if settings.endpoint is not None:
            url, theirs = settings.endpoint, "endpoint"
        elif settings.vllm_python is not None:
            folder, _ = checkpoint_facts(server.endpoint)
            url, theirs = (
                stack.enter_context(vllm_endpoint(settings.vllm_python, folder, name)),
                "vLLM",
            )
        else:
            url, theirs = stack.enter_context(http_gateway(server.endpoint)), "our own endpoint"
        progress("servers are up")
        places = _Places(server.endpoint, url, tools, name)
        found = anyio.run(_measure_all, settings, places, progress)
    report = _report(settings, found, theirs)
    if settings.plot is not None:
        plot(report, plot_path(settings.plot, "inferlets"))
    return report


@dataclass(frozen=True)
class _Places:
    server: str
    endpoint: str
    tools: str
    model: str


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
            async with Endpoint(places.endpoint, places.tools, places.model) as endpoint:
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
    module = importlib.import_module(f"benchmarks.inferlets.clients.{pair.program}")

    async def run(round_trip: float) -> Any:
        endpoint.round_trip = round_trip
        return await module.main(endpoint, **pair.options)

    return run


def _same(ours: Any, theirs: Any) -> bool:
    """Whether a program's result says what the script's does, as far as that goes."""
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
        each = max(2, settings.rounds // 2)

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
        f"Programs beside client-side scripts over {theirs}",
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
