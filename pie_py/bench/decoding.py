"""Inferlets that decode all at the same time, and when each of their tokens came."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import anyio

from pie_py.bench.report import Report, percentile
from pie_py.bench.server import bench_server, with_room
from pie_py.client import Client, Instance
from pie_py.config.model import ModelConfig

WARM_TOKENS = 4  # the first ones, while the others begin
TELL_NS = 1_000_000  # an instance, until all know when they begin
TELL_AT_LEAST = 50  # instances' time


class Decoded(NamedTuple):
    """When the tokens of every instance came, in ns of the machine's monotonic clock."""

    times: list[list[int]]

    @property
    def window(self) -> tuple[int, int]:
        """From when on all decode, and until when.

        Raises:
            RuntimeError: if some had ended before others began: too few tokens to measure anything.
        """
        start = max(own[WARM_TOKENS] for own in self.times)
        end = min(own[-1] for own in self.times)
        if end <= start or min(self._within(start, end)) < 2:
            raise RuntimeError("the instances hardly overlap: ask for more --tokens")
        return start, end

    @property
    def tokens(self) -> int:
        """Tokens of all instances within the window."""
        return sum(self._within(*self.window))

    @property
    def seconds(self) -> float:
        """Length of the window."""
        start, end = self.window
        return (end - start) / 1e9

    @property
    def ms_a_token(self) -> float:
        """Time per output token of an instance within the window, ms."""
        return self.seconds * 1e3 * len(self.times) / self.tokens

    @property
    def gaps_ms(self) -> list[float]:
        """Times between two tokens of an instance within the window, of all instances."""
        start, end = self.window
        return [
            (after - before) / 1e6
            for own in self.times
            for before, after in pairwise(own)
            if before >= start and after <= end
        ]

    def _within(self, start: int, end: int) -> list[int]:
        return [sum(start < time <= end for time in own) for own in self.times]


async def decode_together(
    client: Client,
    program: str,
    count: int,
    prompt: int,
    tokens: int,
    *options: str,
    before_go: Callable[[], None] = lambda: None,
) -> Decoded:
    """Launches instances; once each has its prompt in the pages, all decode at the same time.

    An instance says `ready`, is sent the time at which to go on (ns, of the monotonic clock), and
    returns when each token came, as JSON.

    Args:
        client: of the server to measure.
        program: name or hash of the inferlet.
        count: instances.
        prompt: tokens of each one's own random prompt, which no cache knows.
        tokens: that each generates after that.
        options: further arguments of the inferlet.
        before_go: called when all are ready.

    Raises:
        RuntimeError: if an instance ends before.
    """
    vocabulary = (await client.models())[0]["vocab_size"]
    instances: list[Instance] = []
    times: list[list[int]] = []

    async def launch() -> None:
        text = random_prompt(prompt, vocabulary, random.random())
        instance = await client.launch(program, ["decode", text, str(tokens), *options])
        instances.append(instance)
        if await instance.receive() != "ready":
            await instance.result()  # raises with its reason
            raise RuntimeError("the inferlet ended before it was told to go on")

    async def go_on(instance: Instance, start: int) -> None:
        await instance.send(str(start))
        times.append(json.loads(await instance.result()))

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(launch)
    before_go()
    start = time.monotonic_ns() + TELL_NS * (count + TELL_AT_LEAST)
    async with anyio.create_task_group() as tasks:
        for instance in instances:
            tasks.start_soon(go_on, instance, start)
    return Decoded(times)


async def decode_in(endpoint: str, program: bytes, count: int, prompt: int, tokens: int) -> Decoded:
    """As `decode_together`, of a program in a server that need not know it."""
    async with Client(endpoint) as client:
        digest = await client.upload(program, name="bench")
        return await decode_together(client, digest, count, prompt, tokens)


def random_prompt(length: int, vocabulary: int, seed: float) -> str:
    """Token ids as JSON, away from the special tokens at the vocabulary's start."""
    return json.dumps(random.Random(seed).choices(range(16, vocabulary), k=length))


PROGRAM = Path(__file__).parent / "guests" / "decode.py"


def throughput(model: ModelConfig, at_once: Sequence[int], prompt: int, tokens: int) -> Report:
    """Measures a server of its own, one number of programs after the other."""
    report = Report(
        f"{model.name or model.source}: {prompt} prompt and {tokens} new tokens each",
        [
            *("at once", "tokens/s", "ms a token", "p50", "p99"),
            *("ms from the first launch to the last end",),
        ],
        notes=["p50 and p99: between two tokens of one program, while all generate."],
    )
    program = PROGRAM.read_bytes()
    with bench_server(with_room(model, max(at_once), prompt + tokens)) as server:
        anyio.run(decode_in, server.endpoint, program, 1, prompt, tokens)  # it is compiled once
        for count in at_once:
            start = time.perf_counter()
            found = anyio.run(decode_in, server.endpoint, program, count, prompt, tokens)
            whole = (time.perf_counter() - start) * 1e3
            gaps = found.gaps_ms
            report.rows.append(
                [
                    *(count, found.tokens / found.seconds, found.ms_a_token),
                    *(statistics.median(gaps), percentile(gaps, 0.99), whole),
                ]
            )
    return report
