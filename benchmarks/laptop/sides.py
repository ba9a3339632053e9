"""The sides of a comparison on one GGUF: our server over HTTP, llama.cpp, and transformers."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import anyio
import httpx2
import psutil

from benchmarks.decoding import cpu_seconds
from benchmarks.http.gateway import http_gateway
from benchmarks.http.vllm import NAME
from benchmarks.peers import Peer, PeerFailed
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client
from pie_py.config.model import ModelConfig

HERE = Path(__file__).parent
FIRST_TOKEN = 100  # special ones are before it, mostly


class Work(NamedTuple):
    """Prompts of random tokens that are continued at once, greedily, whatever comes."""

    name: str
    batch: int
    prompt: int
    tokens: int

    def prompts(self, random: Random, vocabulary: int) -> list[list[int]]:
        """Other ones at each call: no cache has them."""
        choices = range(FIRST_TOKEN, vocabulary)
        return [random.choices(choices, k=self.prompt) for _ in range(self.batch)]

    def rate(self, seconds: float, ms_a_token: float) -> float:
        """Tokens per second: of the prompt if it is the work, else of decoding."""
        return self.prompt / seconds if self.tokens == 1 else self.batch * 1e3 / ms_a_token


class Figure(NamedTuple):
    """The figures of one turn."""

    rate: float  # tokens per second
    cpu_ms: float  # a token, of all processes and threads


class Text(NamedTuple):
    """Greedy tokens behind one prompt, and the log-probability of each."""

    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class PeerSide:
    """A peer with a number of threads."""

    name: str
    peer: Peer
    threads: int | None = None

    def measure(self, work: Work, prompts: list[list[int]]) -> Figure:
        """One turn."""
        found = self.peer.ask(prompts=prompts, tokens=work.tokens, steps=True, threads=self.threads)
        rate = work.rate(found["seconds"], found["ms_a_token"])
        return Figure(rate, found["cpu"] * 1e3 / _counted(work))

    def greedy(self, prompt: list[int], tokens: int) -> Text:
        """The text behind a prompt."""
        found = self.peer.ask(prompts=[prompt], tokens=tokens, steps=False)
        return Text(found["tokens"][0], found["logprobs"][0])

    def score(self, windows: list[list[int]]) -> list[float]:
        """Log-probabilities of the tokens behind the first of each window."""
        rows = self.peer.ask(score=windows)["logprobs"]
        return [logprob for row in rows for logprob in row]

    def processes(self) -> dict[str, int]:
        """Identifiers by name."""
        return {self.name: self.peer.pid}


@dataclass(frozen=True)
class OurSide:
    """A server and its gateway."""

    name: str
    url: str
    pids: dict[str, int]
    facts: dict[str, Any]  # of the model

    def measure(self, work: Work, prompts: list[list[int]]) -> Figure:
        """One turn."""
        begin, cpu = time.perf_counter(), self._cpu()
        times = asyncio.run(self._streams(prompts, work.tokens))
        first, last = max(t[0] for t in times), max(t[1] for t in times)
        since = first if first < last else begin  # on a busy machine all may come at once
        ms_a_token = (last - since) / max(1, work.tokens - 1) * 1e3
        rate = work.rate(last - begin, ms_a_token)
        return Figure(rate, (self._cpu() - cpu) * 1e3 / _counted(work))

    def greedy(self, prompt: list[int], tokens: int) -> Text:
        """The text behind a prompt."""
        more = {"max_tokens": tokens, "ignore_eos": True, "return_token_ids": True}
        choice = self._complete(prompt, **more)
        return Text(choice["token_ids"], choice["logprobs"]["token_logprobs"])

    def score(self, windows: list[list[int]]) -> list[float]:
        """Log-probabilities of the tokens behind the first of each window."""
        rows = (self._complete(window, max_tokens=0, echo=True) for window in windows)
        return [value for row in rows for value in row["logprobs"]["token_logprobs"][1:]]

    def processes(self) -> dict[str, int]:
        """Identifiers by name."""
        return {f"{self.name}, {name}": pid for name, pid in self.pids.items()}

    def _complete(self, prompt: list[int], **more: Any) -> Any:
        body = {"model": NAME, "prompt": prompt, "temperature": 0, "logprobs": 1, **more}
        answer = httpx2.post(f"{self.url}/v1/completions", json=body, timeout=300)
        return answer.raise_for_status().json()["choices"][0]

    async def _streams(self, prompts: list[list[int]], tokens: int) -> list[tuple[float, float]]:
        async def one(prompt: list[int]) -> tuple[float, float]:
            times = await _arrivals(self.url, prompt, tokens)
            return times[0], times[-1]

        return await asyncio.gather(*map(one, prompts))

    def _cpu(self) -> float:
        return sum(map(cpu_seconds, self.pids.values()))


Side = PeerSide | OurSide


def _counted(work: Work) -> int:
    return work.batch * (work.prompt if work.tokens == 1 else work.tokens)


@contextmanager
def our_side(name: str, model: ModelConfig, instances: int, tokens: int) -> Iterator[OurSide]:
    """Runs a server and its gateway, with room for so many of so many tokens."""
    named = model.model_copy(update={"name": NAME})
    with (
        bench_server(with_room(named, instances, tokens)) as server,
        http_gateway(server.endpoint) as gateway,
    ):
        workers = psutil.Process(server.pid).children(recursive=True)
        pids = {"control": server.pid, "gateway": gateway.pid}
        pids |= {" ".join(_name(worker)): worker.pid for worker in workers}
        yield OurSide(name, gateway.url, pids, anyio.run(_facts, server.endpoint))


async def _arrivals(url: str, prompt: list[int], tokens: int) -> list[float]:
    """When each part of a completion's stream came, read as plainly as can be."""
    at = urlsplit(url)
    body = {"model": NAME, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
    data = json.dumps({**body, "temperature": 0, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {at.netloc}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    try:
        writer.write(head.encode() + data)
        told = await reader.readuntil(b"\r\n\r\n")
        if b" 200" not in told[:13]:
            raise RuntimeError(f"the gateway answers {told[:40]!r} {await reader.read(500)!r}")
        times, last = [], b""
        while not last.endswith(b"\r\n0\r\n\r\n"):
            if not (part := await reader.read(1 << 16)):
                raise RuntimeError("a stream was cut")
            last = (last + part)[-16:]
            times.append(time.perf_counter())
        return times
    finally:
        writer.close()


def _name(process: psutil.Process) -> list[str]:
    """The module that it runs, or its name."""
    line = process.cmdline()
    return [line[line.index("-m") + 1]] if "-m" in line else [process.name(), str(process.pid)]


async def _facts(endpoint: str) -> dict[str, Any]:
    async with Client(endpoint) as client:
        [facts] = await client.models()
        return facts


@contextmanager
def started(name: str, *command: str) -> Iterator[Peer]:
    """A peer, ready.

    Raises:
        PeerFailed: if there is no such Python, or it does not start.
    """
    try:
        peer = Peer(name, command)
    except OSError as error:
        raise PeerFailed(f"{command[0]}: {error.strerror}") from None
    with peer:
        peer.wait_ready()
        yield peer


def llama_command(python: str, file: str) -> list[str]:
    """That starts llama.cpp on a file."""
    return [python, str(HERE / "llama_peer.py"), file]


def transformers_command(file: str, dtype: str) -> list[str]:
    """That starts transformers on a file's weights."""
    return [sys.executable, str(HERE / "transformers_peer.py"), file, "--dtype", dtype]


def by_threads(name: str, peer: Peer) -> list[PeerSide]:
    """The peer with one thread, and with all cores'."""
    counts = sorted({1, os.cpu_count() or 1})
    return [PeerSide(f"{name}, {count} thread{'s' * (count > 1)}", peer, count) for count in counts]


def memory_mb(processes: Sequence[int]) -> float:
    """The memory of processes, shared pages divided among those that share them."""
    found: float = sum(psutil.Process(pid).memory_full_info().pss for pid in processes) / 1e6
    return found


def peak_mb(pid: int) -> float:
    """The most that a process has had resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1e3
