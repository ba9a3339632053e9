"""Inferlets that decode all at the same time, and other work for those of `guests/`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import anyio

from pie_py.client import Client, Instance

STEP_BY_STEP = "step-by-step"  # option of `decode` and `complete`: do not run ahead
LOOKING = "looking"  # option of `decode`: choose from the distribution of each token
AT_ONCE = "at-once"  # option of `decode`: read all at the end
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


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, all threads; to the nanosecond, where `/proc` has ticks."""
    return time.clock_gettime((~pid << 3) | 2)  # Linux's clock of a process: MAKE_PROCESS_CPUCLOCK


async def complete_all(
    client: Client, program: str, prompts: Sequence[str], tokens: int, *options: str
) -> float:
    """Seconds from the first launch to the last result of completions of the prompts."""

    async def one(prompt: str) -> None:
        instance = await client.launch(program, ["complete", prompt, str(tokens), *options])
        await instance.result()

    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for prompt in prompts:
            tasks.start_soon(one, prompt)
    return time.perf_counter() - start


async def rest(client: Client, program: str, prompt: str, seconds: float) -> None:
    """Lets the server refill its warm instances, which would take a core from the next measurement.

    A short completion follows, as in peers before they are measured: what is not used for a second
    may have left the memory.
    """
    await anyio.sleep(seconds)
    await complete_all(client, program, [prompt], WARM_TOKENS)
