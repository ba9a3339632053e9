"""`http-watching`: what the live page, metrics and traces cost.

Throughput of a machine that does other work is a poor witness of one part in a hundred. So CPU
time is compared: what metrics and traces add to a token's, over all that the cores have in the time
in which the machine makes a token.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anyio

from benchmarks.capacity import DEVICE, READINGS, Capacity
from benchmarks.capacity import measure as capacity
from benchmarks.http.gateway import Served, ask, gateway_server, stream, watch
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import BenchServer, bench_server, with_room
from pie_py.config.limits import Limits
from pie_py.config.model import ModelConfig

PAGE_GOAL = 0.02  # of a core
COST_GOAL = 0.01  # of the time of all cores, or of the control process's alone
SLEEPER = b"from inferlet import runtime\nasync def main(args):\n    await runtime.sleep(3000)\n"
PROMPT = 64  # tokens
WITHOUT, KEPT, TOLD = "without", "metrics, spans kept", "and told to a collector"
NO_SPANS = Limits(trace_spans=0)
AT_ONCE, ALONE = 64, 512  # inferlets in the control process alone, and tokens of each


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What metrics, traces and an open live page cost."""

    model: ModelConfig = options.model("tiny")
    instances: int = options.count("--instances", 200, "Alive while the page is open.")
    seconds: float = options.real("--seconds", 15.0, "With the page, and without.")
    streams: int = options.count("--streams", 16, "At the same time, for throughput.")
    tokens: int = options.count("--tokens", 64, "Of each stream.")
    rounds: int = options.rounds(5)


def watching(settings: Settings, progress: Progress) -> list[Report]:
    """Measures metrics and traces, those of the control process alone, then the page."""
    progress.expect(3 + (3 + 2 * len(READINGS)) * (settings.rounds + 1))
    model = with_room(settings.model, settings.streams, PROMPT + settings.tokens)
    with (
        _collector() as collector,
        gateway_server(model, metrics=False, limits=NO_SPANS) as without,
        gateway_server(model) as kept,
        gateway_server(model, collector=collector) as told,
    ):
        progress("the servers run")
        ways = {
            name: lambda served=served: asyncio.run(_speed(served, settings))
            for name, served in {WITHOUT: without, KEPT: kept, TOLD: told}.items()
        }
        requests = _requests(_in_turns(ways, settings.rounds, progress), settings)
        page = asyncio.run(_page(without, settings))
        progress("the page")
    return [requests, _control(settings, progress), page]


def _in_turns(
    ways: Mapping[str, Callable[[], Any]], rounds: int, progress: Progress
) -> dict[str, list[Any]]:
    """What each way gives in each round, after one to warm up; each begins a round in turn."""
    found: dict[str, list[Any]] = {name: [] for name in ways}
    names = list(ways)
    for turn in range(-1, rounds):
        for name in (*names[turn % len(names) :], *names[: turn % len(names)]):
            figures = ways[name]()
            if turn >= 0:
                found[name].append(figures)
            progress(name)
    return found


def _requests(found: Mapping[str, list[tuple[float, float]]], settings: Settings) -> Report:
    figures = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)]
        for name, runs in found.items()
    }
    speed, cpu = figures[WITHOUT]
    cores = os.cpu_count() or 1
    costs = {name: (own - cpu) / 1e6 * speed / cores for name, (_, own) in figures.items()}
    return Report(
        f"{settings.streams} streams over HTTP, with metrics and traces and without",
        ["metrics and traces", "tokens/s", "CPU µs per token", "of the machine"],
        [[name, *figures[name], costs[name]] for name in figures],
        [
            f"Medians of {settings.rounds} rounds in turns; CPU time of control process and"
            " gateway. Of the machine: what is added to it for a token, over the time of all cores"
            " in which a token is made.",
        ],
        [Goal(f"of the machine, {name}", costs[name], COST_GOAL) for name in (KEPT, TOLD)],
    )


def _control(settings: Settings, progress: Progress) -> Report:
    """The control process, with a worker that answers at once."""
    (program,) = bench_programs(("rust",)).values()
    rows: list[list[object]] = []
    goals = []
    with (
        bench_server(settings.model, worker_module=DEVICE, limits=NO_SPANS) as without,
        bench_server(settings.model, worker_module=DEVICE) as kept,
    ):

        def way(server: BenchServer, reading: str) -> Callable[[], Capacity]:
            return lambda: anyio.run(capacity, server, program, AT_ONCE, reading, PROMPT, ALONE)

        for reading in READINGS:
            ways = {WITHOUT: way(without, reading), KEPT: way(kept, reading)}
            found = _in_turns(ways, settings.rounds, progress)
            cpu = {
                name: statistics.median(run.cpu_us_a_token for run in runs)
                for name, runs in found.items()
            }
            more = cpu[KEPT] / cpu[WITHOUT] - 1
            rows.append([reading, *cpu.values(), more])
            goals.append(Goal(f"spans kept, read {reading}", more, COST_GOAL))
    return Report(
        f"Control process alone, {AT_ONCE} Rust inferlets: CPU µs per token",
        ["read", "no spans", "spans kept", "more"],
        rows,
        [f"Medians of {settings.rounds} rounds in turns of {ALONE} tokens each."],
        goals,
    )


async def _speed(served: Served, settings: Settings) -> tuple[float, float]:
    """Tokens per second, and CPU time of control process and gateway per token."""
    before, began = served.cpu_seconds, time.monotonic()

    async def read() -> None:
        prompt = [random.randrange(10, 8000) for _ in range(PROMPT)]
        async for _ in stream(served.url, prompt, settings.tokens):
            pass

    await asyncio.gather(*(read() for _ in range(settings.streams)))
    tokens = settings.streams * settings.tokens
    seconds = time.monotonic() - began
    return tokens / seconds, (served.cpu_seconds - before) / tokens * 1e6


async def _page(served: Served, settings: Settings) -> Report:
    """CPU time while the page is open, over that while it is not."""
    await ask(served.url, "POST", "/v1/programs?name=sleeper", SLEEPER)
    for _ in range(settings.instances):
        await ask(served.url, "POST", "/v1/instances", {"program": "sleeper"})
    shares = []
    for looks in (False, True):
        viewer = asyncio.create_task(watch(served.url)) if looks else None
        await asyncio.sleep(1)
        before = served.cpu_seconds
        await asyncio.sleep(settings.seconds)
        shares.append((served.cpu_seconds - before) / settings.seconds)
        if viewer is not None:
            if viewer.done():
                viewer.result()
            viewer.cancel()
    cost = shares[1] - shares[0]
    return Report(
        f"The live page with {settings.instances} instances alive",
        ["", "of a core"],
        [["nobody looks", shares[0]], ["one page is open", shares[1]]],
        ["CPU time of control process and gateway."],
        [Goal("what an open page costs, of a core", cost, PAGE_GOAL)],
    )


@contextmanager
def _collector() -> Iterator[str]:
    """Takes spans and forgets them."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


BENCHMARK = Benchmark(Settings, watching)
