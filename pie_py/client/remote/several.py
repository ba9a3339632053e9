"""One function for many inputs: an instance gets several of them, at once and one after the other.

Inputs that begin alike go together, so that the prefix cache still has what they share. An instance
gets no more long before it reaches a limit, and another one takes its place. If one ends all the
same, each of the inputs that it had is asked again alone: that shows which of them has ended it.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

import anyio

from pie_py.client.errors import ClientError, InferletFailed, RpcError
from pie_py.client.instance import Instance
from pie_py.client.remote.call import Sender, end, ending, understood

AT_ONCE = 16  # inputs in one instance, of a function that lets others go on while it waits
SHARE = 0.5  # of a limit, after which an instance gets no more
LOOKS = 8  # at an instance before it has used that share
LOOK_SECONDS = 1.0  # at most
MESSAGE_BYTES = 1 << 18  # of inputs that are sent together

Given = tuple[tuple[Any, ...], Mapping[str, Any]]  # arguments by place and by name
Done = Callable[[int, Any], None]  # gets the number of an input, and its result or an exception


async def map_calls(
    sender: Sender,
    inputs: list[tuple[Any, ...]],
    at_once: int,
    return_exceptions: bool,
    progress: bool,
) -> list[Any]:
    """The results of a function for each input, in order; see `Client.map`."""
    results: list[Any] = [None] * len(inputs)

    def done(number: int, result: Any) -> None:
        results[number] = result
        if isinstance(result, Exception) and not return_exceptions:
            raise result

    await call_each(sender, [(args, {}) for args in inputs], at_once, done, progress)
    return results


async def call_each(
    sender: Sender, inputs: Sequence[Given], at_once: int, done: Done, progress: bool
) -> None:
    """Calls a function for each input, so many at once; `done` is told of each as it ends. What it
    raises first ends the others, and is raised. Raises `TypeError`: it yields. Raises
    `ValueError`: none may be under way. Raises `ClientError`: no server.
    """
    if at_once < 1:
        raise ValueError(f"at_once={at_once}: no input would be under way; give 1 or more")
    problem: Exception | None = None
    with progress_bar(len(inputs), progress) as advance, anyio.CancelScope() as scope:

        def each(number: int, result: Any) -> None:
            nonlocal problem
            try:
                done(number, result)
            except Exception as error:  # noqa: BLE001  it goes to the caller
                problem = problem or error
                scope.cancel()
            advance()

        await _call_each(sender, inputs, at_once, each)
    if problem is not None:
        raise problem


async def _call_each(sender: Sender, inputs: Sequence[Given], at_once: int, done: Done) -> None:
    reach, texts = sender.reach, dict[int, str]()
    if reach.streams:
        raise TypeError(f"{reach.name} yields: read it with `client.stream({reach.name}, ...)`")
    for number, (args, options) in enumerate(inputs):
        try:
            texts[number] = sender.encoded(args, options)
        except Exception as error:  # noqa: BLE001  it goes to the caller
            done(number, error)
    limits = (await sender.client.server_info())["limits"]
    work = _Work(sender, texts, limits, done)
    waiting = deque(sorted(texts, key=lambda number: _beginning(inputs[number])))
    width = AT_ONCE if reach.waits else 1
    async with anyio.create_task_group() as tasks:
        for first in range(0, min(at_once, len(waiting)), width):
            tasks.start_soon(work.do, waiting, min(width, at_once - first))


def _beginning(given: Given) -> str:
    """The text by which inputs go together: the longest of the arguments, mostly a prompt."""
    values = (*given[0], *given[1].values())
    texts = (value if isinstance(value, str) else repr(value) for value in values)
    return max(texts, key=len, default="")


class _Work:
    """The inputs, and the instances that they are given to."""

    def __init__(
        self, sender: Sender, texts: Mapping[int, str], limits: Mapping[str, Any], done: Done
    ) -> None:
        self._sender = sender
        self._texts = texts
        self._limits = limits
        self._done = done
        self._pause = min(LOOK_SECONDS, SHARE * limits["cpu_seconds"] / LOOKS)

    async def do(self, waiting: deque[int], width: int) -> None:
        """Uses one instance after the other, with so many inputs at once, until none waits."""
        while waiting:
            for number in await self._use(waiting, width):
                await self._use(deque([number]), 1)

    async def _use(self, waiting: deque[int], width: int) -> Collection[int]:
        """Gives an instance inputs; those that it had when it ended, if they were several."""
        asked: set[int] = set()
        instance: Instance | None = None
        try:
            instance = await self._sender.launch(None)
            await self._feed(instance, waiting, width, asked)
        except Exception as error:  # noqa: BLE001  it goes to the caller
            if isinstance(error, InferletFailed) and len(asked) > 1:
                return asked
            if not asked and waiting:  # others may have taken all meanwhile
                asked.add(waiting.popleft())
            for number in asked:
                self._done(number, error)
        finally:
            if instance is not None:
                await end(instance)
        return ()

    async def _feed(
        self, instance: Instance, waiting: deque[int], width: int, asked: set[int]
    ) -> None:
        """Sends inputs and reads results until none waits, or the instance gets no more. Raises
        `ClientError`: it has ended, or the server has. Raises `Exception`: it could not begin.
        """
        begun = looked = time.monotonic()
        gets_more = True
        while asked or (waiting and gets_more):
            if gets_more:
                await self._send(instance, waiting, width - len(asked), asked)
            while asked:
                await self._read(instance, asked)
                if not instance.has_message:
                    break
            if time.monotonic() - looked > self._pause:
                looked = time.monotonic()
                gets_more = gets_more and await self._used(instance, looked - begun) < SHARE
        with suppress(ClientError):  # all is answered
            await instance.send(b"[]")
            await instance.result()

    async def _send(
        self, instance: Instance, waiting: deque[int], most: int, asked: set[int]
    ) -> None:
        """Sends as many inputs as may be at once, several in a message."""
        while waiting and most:
            part: list[int] = []
            size = 0
            while waiting and len(part) < most:
                size += len(self._texts[waiting[0]])
                if part and size > MESSAGE_BYTES:
                    break
                part.append(waiting.popleft())
            most -= len(part)
            asked.update(part)
            calls = [{"n": number + 1, "args": self._texts[number]} for number in part]
            try:
                await instance.send(json.dumps(calls).encode())
            except RpcError as error:
                if error.code == "cancelled":
                    return  # it has ended: what it has sent before says why
                if error.code != "limit-exceeded":
                    raise
                asked.difference_update(part)
                for number in part:
                    self._done(number, error)

    async def _read(self, instance: Instance, asked: set[int]) -> None:
        """Reads a message, which may be a result."""
        message = await instance.receive()
        if message is None:
            raise await ending(instance)
        number, kind, value = understood(message, instance, self._sender.reach)
        if kind == "raise" and number == 0:
            raise value
        if kind == "raise" and isinstance(value, MemoryError) and len(asked) > 1:
            raise InferletFailed("failed", str(value))  # which may be another input's doing
        if number - 1 in asked:
            asked.remove(number - 1)
            self._done(number - 1, value)

    async def _used(self, instance: Instance, seconds: float) -> float:
        """The share of its limits that an instance has used."""
        try:
            facts = await self._sender.client.inspect(instance.id)
        except RpcError:  # it has ended
            return 1.0
        limits = self._limits
        used: float = max(
            facts["cpu_ms"] / 1e3 / limits["cpu_seconds"],
            facts["memory_bytes"] / limits["memory"],
            seconds / limits["wall_seconds"],
        )
        return used


@contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on standard error, if rich is installed; yields what moves it on."""
    if not shown or find_spec("rich") is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
