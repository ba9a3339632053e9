"""Calls of functions that run in inferlets, and objects that live there."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import anyio
import anyio.to_thread

from pie_py.client.errors import InferletFailed, unreadable
from pie_py.client.instance import Instance, Launcher
from pie_py.client.remote.raised import rebuilt
from pie_py.client.remote.reach import Reach
from pie_py.client.remote.values import CannotTravel, loads
from pie_py.config.printable import printable

MARK = b"\0call "  # begins the messages of `guests/main.py`


class Call:
    """A function that runs in an inferlet: await its `result`, or iterate over what it yields.

    What it prints is printed here while one of both is done, and so is what it sends to its client.
    """

    def __init__(self, instance: Instance, reach: Reach, number: int = 0) -> None:
        self.instance = instance
        self._reach = reach
        self._number = number
        self._values = self._read()
        self._returned: Any = None

    def __repr__(self) -> str:
        return f"<Call of {self._reach.name}, {self.instance.id}>"

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._values

    async def result(self) -> Any:
        """The function's result.

        Raises:
            InferletFailed: it was ended: by a limit, or by `cancel`. What the function itself has
                raised comes as it is if its type is known here, else as InferletFailed.
            TypeError: it yields: iterate over it.
        """
        if self._number == 0 and self._reach.streams:
            raise TypeError(
                f"{self._reach.name} yields: read it with `client.stream({self._reach.name}, ...)`"
            )
        async for _ in self._values:
            pass
        return self._returned

    async def cancel(self) -> None:
        """Ends it."""
        await self.instance.cancel()

    async def _read(self) -> AsyncIterator[Any]:
        """Messages until the call has ended; those of an earlier call of the object are old."""
        async for message in self.instance:
            if not isinstance(message, bytes) or not message.startswith(MARK):
                _print(message)
                continue
            try:
                kind, value = self._understood(json.loads(message[len(MARK) :]))
            except Exception as error:  # whatever the code in the inferlet has sent
                raise unreadable(f"an answer of {self.instance.id}", error) from error
            if kind == "raise":
                raise value
            if kind == "return":
                self._returned = value
                return
            if kind == "yield":
                yield value
        await self.instance.result()  # says why it has ended
        # A task of the function has ended the program, in order.
        raise InferletFailed(
            "failed", f"SystemExit: {self.instance.id} has ended without an answer"
        )

    def _understood(self, report: dict[str, Any]) -> tuple[str, Any]:
        """The kind of a report, and its value or exception; an empty kind of what is done with."""
        kind = report["kind"]
        if kind in ("out", "err"):
            print(_shown(report["text"]), end="", file=getattr(sys, f"std{kind}"))
            return "", None
        if report["n"] != self._number:
            return "", None
        if kind == "raise":
            return kind, rebuilt(report, self._reach.types, self._reach.origin)
        value = loads(report["value"], self._reach.types.__getitem__)
        return ("return" if kind == "return" else "yield"), value


class Remote:
    """An object that lives in an inferlet. Its methods are called one at a time, in order.

    ::

        async with await client.create(Agent, "Ada") as agent:
            print(await agent.ask("How are you?"))
    """

    def __init__(self, instance: Instance, reach: Reach) -> None:
        self._instance = instance
        self._reach = reach
        self._kind = reach.target
        self._calls = 0
        self._program = reach.program()
        self._turn = anyio.Semaphore(1)  # a lock would want one task for all of a stream

    def __repr__(self) -> str:
        return f"<Remote {self._kind.__name__}, {self._instance.id}>"

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method: awaited, or iterated over if it yields."""
        method = getattr(self._kind, name)  # raises for a name that the class does not have
        if not callable(method):
            raise AttributeError(
                f"{self._kind.__name__}.{name} is no method: add one that returns it"
            )
        if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            return lambda *args, **options: self._stream(name, args, options)
        return lambda *args, **options: self._result(name, args, options)

    async def __aenter__(self) -> Remote:
        """The object itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """As `close`."""
        with anyio.CancelScope(shield=True):
            await self.close()

    async def close(self) -> None:
        """Ends the object; does nothing if it has ended."""
        if not self._instance.ended:
            await self._instance.cancel()

    async def _result(self, name: str, args: Any, options: Any) -> Any:
        async with self._turn:
            call = await self._begin(name, args, options)
            return await call.result()

    async def _stream(self, name: str, args: Any, options: Any) -> AsyncIterator[Any]:
        async with self._turn:
            async for value in await self._begin(name, args, options):
                yield value

    async def _begin(self, name: str, args: Any, options: Any) -> Call:
        encoded = self._reach.encoded((args, options), f"an argument of {name}")
        if self._reach.program() != self._program:
            raise CannotTravel(
                f"an argument of {name} has a type that {self._kind.__name__} did not know when it"
                " was made: mention the type in the class"
            )
        self._calls += 1
        request = {"n": self._calls, "method": name, "args": encoded}
        await self._instance.send(json.dumps(request).encode())
        return Call(self._instance, self._reach, self._calls)


class Sender:
    """Starts instances that call one function, or make objects of one class."""

    def __init__(self, client: Launcher, reach: Reach) -> None:
        self.reach = reach
        self._client = client
        self._uploading = anyio.Lock()
        self._uploaded = (b"", "")  # the program, and its content hash

    @classmethod
    async def of(cls, client: Launcher, target: Callable[..., Any]) -> Sender:
        """Of a function or class; a thread reads its source.

        Raises:
            CannotTravel: it cannot be sent.
        """
        return cls(client, await anyio.to_thread.run_sync(Reach, target))

    async def begin(self, args: Any, options: Any) -> Instance:
        """Starts one."""
        encoded = self.reach.encoded((args, options), f"an argument of {self.reach.name}")
        request = json.dumps({**self.reach.request(), "args": encoded})
        async with self._uploading:
            program = self.reach.program()  # has grown if the arguments have new types
            if self._uploaded[0] != program:
                self._uploaded = (
                    program,
                    await self._client.upload(program, name=self.reach.program_name),
                )
        return await self._client.launch(self._uploaded[1], [request])

    async def result(self, args: Any, options: Any) -> Any:
        """A call's result; its instance ends with it."""
        instance = await self.begin(args, options)
        try:
            return await Call(instance, self.reach).result()
        finally:
            await end(instance)


async def map_calls(
    sender: Sender,
    inputs: list[tuple[Any, ...]],
    at_once: int,
    return_exceptions: bool,
    progress: bool,
) -> list[Any]:
    """The results of a function for each input, in order; see `Client.map`."""
    results: list[Any] = [None] * len(inputs)
    numbered = iter(enumerate(inputs))
    problem: Exception | None = None
    with _bar(len(inputs), progress) as advance:
        async with anyio.create_task_group() as tasks:

            async def work() -> None:
                nonlocal problem
                for number, args in numbered:
                    try:
                        results[number] = await sender.result(args, {})
                    except Exception as error:  # noqa: BLE001  it goes to the caller
                        if not return_exceptions:
                            problem = problem or error
                            tasks.cancel_scope.cancel()
                            return
                        results[number] = error
                    advance()

            for _ in range(min(at_once, len(inputs))):
                tasks.start_soon(work)
    if problem is not None:  # raised outside of the group, which would wrap it
        raise problem
    return results


@contextmanager
def _bar(total: int, shown: bool) -> Iterator[Callable[[], None]]:
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


async def end(instance: Instance) -> None:
    """Ends an instance whose caller has gone."""
    if not instance.ended:
        with anyio.move_on_after(5, shield=True):
            await instance.cancel()


def _print(message: str | bytes) -> None:
    """A message that a program sends by itself, as `pie-py run` shows it."""
    text = message if isinstance(message, str) else message.decode(errors="replace")
    print(_shown(text), end="")


def _shown(text: str) -> str:
    return printable(text, None, lines=True)
