"""`http-watching`: what the live page, metrics and traces cost."""

from __future__ import annotations

import asyncio
import random
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.http.gateway import Served, ask, gateway_server, stream, watch
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import with_room
from pie_py.config.limits import Limits
from pie_py.config.model import ModelConfig

PAGE_GOAL = 0.02  # of a core
TRACE_GOAL = 0.99  # of the throughput without
SLEEPER = b"from inferlet import runtime\nasync def main(args):\n    await runtime.sleep(3000)\n"
PROMPT = 64  # tokens


@dataclass(frozen=True, kw_only=True)
class Settings:
    """CPU time of the live page beside many instances; throughput with metrics and traces, and
    without.
    """

    model: ModelConfig = options.model("tiny")
    instances: int = options.count("--instances", 200, "Alive while the page is open.")
    seconds: float = options.real("--seconds", 15.0, "With the page, and without.")
    streams: int = options.count("--streams", 16, "At the same time, for throughput.")
    tokens: int = options.count("--tokens", 64, "Of each stream.")
    rounds: int = options.rounds(5)


def watching(settings: Settings, progress: Progress) -> list[Report]:
    """Measures the page, then traces."""
    progress.expect(2 + 2 * settings.rounds)
    model = with_room(settings.model, settings.streams, PROMPT + settings.tokens)
    limits = Limits(trace_spans=0)
    with (
        _collector() as collector,
        gateway_server(model, collector=collector) as on,
        gateway_server(model, metrics=False, limits=limits) as off,
    ):
        progress("the servers run")
        speeds: dict[str, list[tuple[float, float]]] = {"on": [], "off": []}
        for turn in range(-1, settings.rounds):
            for name, served in (("on", on), ("off", off)):
                figures = asyncio.run(_speed(served, settings))
                if turn >= 0:
                    speeds[name].append(figures)
                    progress(f"metrics and traces {name}")
        page = asyncio.run(_page(off, settings))
        progress("the page")
    return [_traces(speeds, settings), page]


def _traces(speeds: dict[str, list[tuple[float, float]]], settings: Settings) -> Report:
    figures = {
        name: [statistics.median(column) for column in zip(*runs, strict=True)]
        for name, runs in speeds.items()
    }
    rows: list[list[object]] = [[name, *figures[name]] for name in figures]
    ratio = figures["on"][0] / figures["off"][0]
    return Report(
        f"{settings.streams} streams, with metrics, spans and a collector, and without",
        ["metrics and traces", "tokens/s", "CPU µs a token"],
        rows,
        [f"Medians of {settings.rounds} rounds in turns; CPU time of control process and gateway."],
        [Goal("throughput with over without", ratio, TRACE_GOAL, at_most=False)],
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
