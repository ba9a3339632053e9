"""Functions of the client that launched the inferlet, called over its session.

Messages are JSON objects. To the client: `{"type": "execute", "number", "name", "arguments"}` and
`{"type": "cancel", "number"}`. From it: `{"type": "result", "number", "value"}` (or `error`, or
`text` and `length` of a value cut short), `{"type": "user", "text"}` and `{"type": "close"}`.
`pie_py.client.functions` does the client's part.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from asynclm.tools.tool import Cut, Run, ToolError
from inferlet import session


class ClientLink:
    """Sends calls to the client and hears what it says.

    It is `used` if a tool is the client's, and `closed` once the client sends no more tasks.
    """

    def __init__(self, on_task: Callable[[str], None] | None = None) -> None:
        """`on_task` is told of what the client's user says meanwhile."""
        self.used = False
        self.closed = asyncio.Event()
        self._on_task = on_task
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._count = 0

    def runner(self, name: str) -> Run:
        """The `Run` of a function of the client."""
        self.used = True

        async def run(arguments: dict[str, Any]) -> Any:
            self._count += 1
            number = self._count
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._calls[number] = future
            await session.drain()
            session.send(
                {"type": "execute", "number": number, "name": name, "arguments": arguments}
            )
            try:
                return await future
            except asyncio.CancelledError:
                session.send({"type": "cancel", "number": number})
                raise
            finally:
                del self._calls[number]

        return run

    async def listen(self) -> None:
        """Takes messages until it is cancelled. What is no message of the protocol is logged."""
        while True:
            text = await session.receive()
            try:
                message = json.loads(text)
                kind = message["type"]
                if kind == "result":
                    self._answer(message)
                elif kind == "user" and self._on_task is not None:
                    self._on_task(str(message["text"]))
                elif kind == "close":
                    self.closed.set()
                else:
                    raise KeyError(kind)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                print(f"ignored a message of the client: {type(error).__name__}: {error}")

    def _answer(self, message: dict[str, Any]) -> None:
        future = self._calls.get(message["number"])
        if future is None or future.done():
            return  # timed out meanwhile
        if "error" in message:
            future.set_exception(ToolError(str(message["error"])))
        elif "text" in message:
            future.set_result(Cut(str(message["text"]), int(message["length"])))
        else:
            future.set_result(message["value"])
