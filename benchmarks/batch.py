"""`python -m benchmarks batch`: the ways to have many prompts answered, against a loop over HTTP.

Each way gets prompts of its own in each round, so that none finds them in the prefix cache.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.http.gateway import http_gateway
from inferlet import Context, Model, Sampler
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.client import sync
from pie_py.config.model import ModelConfig

LOOP, MAP, COMMAND, FILES = "HTTP, 32 threads", "client.map", "pie-py batch", "/v1/batches"
THREADS = 32
GOAL = 1.2  # times the loop's throughput
TOKENS = 16
WHO = ("the old man", "a girl", "the ship", "my dog", "the king", "a small bird")
DOES = ("went to", "looked at", "found", "carried", "forgot")
WHAT = ("the river", "a red box", "the town", "some bread", "a letter")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Prompts per second by each way to have many short prompts answered."""

    models: tuple[ModelConfig, ...] = options.models("pie-tiny")
    prompts: int = options.count("--prompts", 2000, "Of each way in a round.")
    rounds: int = options.rounds(3)


def _prompts(count: int) -> list[str]:
    pick = random.choice
    return [
        f"Item {random.randrange(10**6)}: {pick(WHO)} {pick(DOES)} {pick(WHAT)} and"
        for _ in range(count)
    ]


def _body(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


async def _complete(prompt: str) -> str:
    """The function that `client.map` runs."""
    context = Context(Model.load()).fill(prompt)
    return await context.generate(Sampler.argmax(), max_tokens=16, stop=[]).collect_text()


class _Http:
    """Requests to a gateway; each thread has a connection."""

    def __init__(self, url: str) -> None:
        self._host = url.removeprefix("http://")
        self._own = threading.local()

    def ask(self, method: str, path: str, body: bytes, kind: str = "application/json") -> Any:
        """The answer's JSON."""
        if not hasattr(self._own, "connection"):
            self._own.connection = HTTPConnection(self._host)
        connection: HTTPConnection = self._own.connection
        connection.request(method, path, body, {"content-type": kind})
        answer = connection.getresponse()
        found = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"{path}: {found}")
        return found

    def loop(self, prompts: Sequence[str]) -> None:
        """One request after the other in each of some threads."""

        def one(prompt: str) -> None:
            self.ask("POST", "/v1/completions", json.dumps(_body(prompt)).encode())

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(one, prompts))

    def files(self, prompts: Sequence[str]) -> None:
        """A batch of the API."""
        self._own.connection = HTTPConnection(self._host)  # the server has closed that of before
        where = "/v1/completions"
        lines = (
            {"custom_id": str(number), "method": "POST", "url": where, "body": _body(prompt)}
            for number, prompt in enumerate(prompts)
        )
        text = "\n".join(map(json.dumps, lines))
        name = 'Content-Disposition: form-data; name="'
        form = f'--x\r\n{name}purpose"\r\n\r\nbatch\r\n--x\r\n{name}file"; filename="f"\r\n\r\n'
        kind = "multipart/form-data; boundary=x"
        file = self.ask("POST", "/v1/files", f"{form}{text}\r\n--x--\r\n".encode(), kind)
        asked = {"input_file_id": file["id"], "endpoint": where, "completion_window": "24h"}
        batch = self.ask("POST", "/v1/batches", json.dumps(asked).encode())
        while batch["status"] in ("validating", "in_progress", "finalizing"):
            time.sleep(0.05)
            batch = self.ask("GET", f"/v1/batches/{batch['id']}", b"")
        if batch["request_counts"]["completed"] != len(prompts):
            raise RuntimeError(f"not all was answered: {batch}")


def _command(endpoint: str, prompts: Sequence[str]) -> None:
    """`pie-py batch`, from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        asked = Path(folder, "in.jsonl")
        asked.write_text("\n".join(json.dumps(_body(prompt)) for prompt in prompts))
        command = [sys.executable, "-m", "pie_py", "batch", str(asked), "-o", f"{folder}/out"]
        done = subprocess.run([*command, "--endpoint", endpoint], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-1000:])


def _measure(model: ModelConfig, settings: Settings, progress: Progress) -> Report:
    model = with_room(model, 4 * THREADS, 64)
    rates: dict[str, list[float]] = {name: [] for name in (LOOP, MAP, COMMAND, FILES)}
    with (
        bench_server(model) as server,
        http_gateway(server.endpoint) as gateway,
        sync.Client(server.endpoint) as client,
    ):
        http = _Http(gateway.url)
        ways: dict[str, Callable[[list[str]], object]] = {
            LOOP: http.loop,
            MAP: lambda prompts: client.map(_complete, prompts),
            COMMAND: lambda prompts: _command(server.endpoint, prompts),
            FILES: http.files,
        }
        for turn in range(-1, settings.rounds):  # the first warms up
            for name, way in ways.items():
                prompts = _prompts(settings.prompts if turn >= 0 else 2 * THREADS)
                begun = time.perf_counter()
                way(prompts)
                if turn >= 0:
                    rates[name].append(len(prompts) / (time.perf_counter() - begun))
                progress(name)
    median = {name: statistics.median(found) for name, found in rates.items()}
    ratios = {name: rate / median[LOOP] for name, rate in median.items()}
    name = model.name or model.source
    return Report(
        f"Batch: {settings.prompts} prompts of about 16 tokens, {TOKENS} new ones, {name}",
        ["way", "prompts/s", "of the loop"],
        [[way, median[way], ratios[way]] for way in rates],
        ["`pie-py batch` from the start of its process; `/v1/batches` with the upload."],
        [
            Goal(f"{way}, of the loop", ratio, GOAL, at_most=False)
            for way, ratio in ratios.items()
            if way != LOOP
        ],
    )


def batch(settings: Settings, progress: Progress) -> list[Report]:
    """Measures all ways in turns, on each model."""
    progress.expect(len(settings.models) * 4 * (settings.rounds + 1))
    return [_measure(model, settings, progress) for model in settings.models]


BENCHMARK = Benchmark(Settings, batch)
