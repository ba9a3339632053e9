"""Calls of functions that run in inferlets, and objects that live there."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeAlias

import anyio
import anyio.to_thread

from pie_py.client.errors import ClientError, InferletFailed, unreadable
from pie_py.client.instance import Instance, Launcher
from pie_py.client.remote.program import Main
from pie_py.client.remote.raised import rebuilt
from pie_py.client.remote.reach import Reach
from pie_py.client.remote.values import CannotTravel, loads
from pie_py.config.printable import printable

MARK = b"\0call "  # begins the messages of `guests/main.py`


Sent: TypeAlias = Reach | Main  # a function as it is sent, with all that it needs


class Call:
    """A function that runs in an inferlet: await its `result`, or iterate over what it yields.

    What it prints is printed here while one of both is done, and so is what it sends to its client.
    """

    def __init__(self, instance: Instance, reach: Sent, number: int = 0) -> None:
        self.instance = instance
        self._reach = reach
        self._number = number
        self._answer: tuple[str, Any] | None = None  # its kind, and its value or exception

    def __repr__(self) -> str:
        return f"<Call of {self._reach.name}, {self.instance.id}>"

    async def __aiter__(self) -> AsyncIterator[Any]:
        kind, value = await self._next()
        while kind == "yield":
            yield value
            kind, value = await self._next()
        if kind == "raise":
            raise value
        if value is not None:  # one that yields returns nothing
            name = self._reach.name
            raise TypeError(f"{name} yields nothing: use `client.run({name}, ...)`")

    async def result(self) -> Any:
        """The function's result. Raises `InferletFailed`: it was ended: by a limit, or by `cancel`.
        What the function itself has raised comes as it is if its type is known here, else as
        InferletFailed. Raises `TypeError`: it yields: iterate over it.
        """
        if self._number == 0 and self._reach.streams:
            raise TypeError(
                f"{self._reach.name} yields: read it with `client.stream({self._reach.name}, ...)`"
            )
        kind, value = await self._next()
        while kind == "yield":
            kind, value = await self._next()
        if kind == "raise":
            raise value
        return value

    async def cancel(self) -> None:
        """Ends it."""
        await self.instance.cancel()

    async def _next(self) -> tuple[str, Any]:
        """The kind and value of what comes next; after the answer, that again. Messages of an
        earlier call of the object are old.
        """
        while self._answer is None:
            message = await self.instance.receive()
            if message is None:
                self._answer = "raise", await ending(self.instance)
                break
            number, kind, value = understood(message, self.instance, self._reach)
            if number == self._number and kind == "yield":
                return kind, value
            if number == self._number:
                self._answer = kind, value
        return self._answer


PRINTED = (-1, "", None)  # a message that is done with; no call has this number


def understood(message: str | bytes, instance: Instance, reach: Sent) -> tuple[int, str, Any]:
    """The number of the call that a message is of, its kind ("yield", "return" or "raise"), and its
    value or exception; what is printed is printed, and `PRINTED`. Raises `ClientError`: nothing
    that `guests/main.py` sends.
    """
    if not isinstance(message, bytes) or not message.startswith(MARK):  # sent by itself
        text = message if isinstance(message, str) else message.decode(errors="replace")
        print(_shown(text), end="")
        return PRINTED
    try:
        report = json.loads(message[len(MARK) :])
        number, kind = report.get("n", -1), report["kind"]
        if kind in ("out", "err"):
            print(_shown(report["text"]), end="", file=getattr(sys, f"std{kind}"))
            return PRINTED
        if kind == "raise":
            return number, kind, rebuilt(report, reach.types, reach.origin)
        return number, kind, loads(report["value"], reach.types.__getitem__)
    except Exception as error:  # whatever the code in the inferlet has sent
        raise unreadable(f"an answer of {instance.id}", error) from error


async def ending(instance: Instance) -> Exception:
    """The reason why an instance has ended that has an answer to give."""
    try:
        await instance.result()
    except InferletFailed as error:
        return error
    # A task of the function has ended the program, in order.
    text = f"SystemExit: {instance.id} has ended without an answer"
    return InferletFailed("failed", text)


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
        """As `close`, unless the server is lost."""
        await end(self._instance)

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

    def __init__(self, client: Launcher, reach: Sent) -> None:
        self.reach = reach
        self.client = client
        self._uploading = anyio.Lock()
        self._uploaded = (b"", "")  # the program, and its content hash

    @classmethod
    async def of(cls, client: Launcher, target: Callable[..., Any]) -> Sender:
        """Of a function or class; a thread reads its source. Raises `CannotTravel`: it cannot."""
        return cls(client, await anyio.to_thread.run_sync(Reach, target))

    def encoded(self, args: Any, options: Any) -> str:
        """The arguments of a call as they travel. Raises CannotTravel."""
        return self.reach.encoded((args, options), f"an argument of {self.reach.name}")

    async def begin(self, args: Any, options: Any) -> Instance:
        """Starts one, of one call."""
        return await self.launch(self.encoded(args, options))

    async def launch(self, encoded: str | None) -> Instance:
        """Starts one, of a call with these arguments; or, without, of calls that are sent to it."""
        request = json.dumps({**self.reach.request(), "args": encoded})
        async with self._uploading:
            program = self.reach.program()  # has grown if the arguments have new types
            if self._uploaded[0] != program:
                self._uploaded = (
                    program,
                    await self.client.upload(program, name=self.reach.program_name),
                )
        return await self.client.launch(self._uploaded[1], [request])

    async def result(self, args: Any, options: Any) -> Any:
        """A call's result; its instance ends with it."""
        if inspect.isclass(getattr(self.reach, "target", None)):
            name = self.reach.name
            raise TypeError(f"{name} is a class: use `client.create({name}, ...)`")
        instance = await self.begin(args, options)
        try:
            return await Call(instance, self.reach).result()
        finally:
            await end(instance)


async def end(instance: Instance) -> None:
    """Ends an instance whose caller has gone."""
    if not instance.ended:
        with anyio.move_on_after(5, shield=True), suppress(ClientError):  # it may be lost
            await instance.cancel()


def _shown(text: str) -> str:
    return printable(text, None, lines=True)
