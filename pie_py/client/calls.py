"""A session's requests that wait for their answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeAlias

import anyio

from pie_py.client.errors import ClientError, RequestTooLarge, RpcError, unreadable
from pie_py.config.printable import quoted
from pie_py.wire.rpc import Request, encode

Reader: TypeAlias = Callable[[Any], Any]


class Call:
    """A request that waits for its answer."""

    __slots__ = ("answer", "done", "frame", "number", "read", "then")

    def __init__(self, number: int, frame: Callable[[], bytes], read: Reader | None) -> None:
        self.number = number
        self.frame = frame
        self.done = anyio.Event()
        self.answer: Any = None  # the value, or an exception
        self.read = read
        self.then: Callable[[Any], None] | None = None  # gets the answer

    def settle(self, answer: Any) -> None:
        """Gives the call its value or exception."""
        if not isinstance(answer, Exception) and self.read is not None:
            try:
                answer = self.read(answer)
            except Exception as error:  # noqa: BLE001  a hostile answer is this call's error
                answer = unreadable("this answer", error)
        self.answer = answer
        self.done.set()
        if self.then is not None:
            self.then(answer)

    def give_up(self, on_late: Callable[[Any], None] | None) -> None:
        """Its caller was cancelled: its value, now or later, goes to `on_late`."""
        if on_late is None:
            return

        def then(answer: Any) -> None:
            if not isinstance(answer, Exception):
                on_late(answer)

        if self.done.is_set():
            then(self.answer)
        else:
            self.then = then


class Calls:
    """The open calls, in order of their numbers, which grow."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, Call] = {}

    def open(
        self, method: str, params: dict[str, Any], read: Reader | None, limit: int
    ) -> tuple[Call, bytes]:
        """A new call and its request's bytes; they are made again when it is sent again. Raises
        `RpcError`: `invalid-argument` if it has what no message holds. Raises `RequestTooLarge`: it
        has more than `limit` bytes: the server would break the connection.
        """
        number = next(self._numbers)

        def frame() -> bytes:
            # Below the lowest number that is open here, nothing will be asked for again.
            return encode(Request(number, next(iter(self._open), number), method, params))

        try:
            data = frame()
        except (TypeError, ValueError, OverflowError) as error:
            reason: object = error
            if isinstance(error, UnicodeEncodeError):
                reason = f"{quoted(error.object)} is not a text in UTF-8: {error.reason}"
            raise RpcError("invalid-argument", f"{method} cannot be sent: {reason}") from None
        if len(data) > limit:
            raise RequestTooLarge(f"{method}: {len(data)} bytes; this server takes {limit} at once")
        call = self._open[number] = Call(number, frame, read)
        return call, data

    def answer(self, number: int, answer: Any) -> None:
        """Ends a call with its value or exception; one that is not open is left alone."""
        call = self._open.pop(number, None)
        if call is not None:
            call.settle(answer)

    def forget(self, number: int) -> None:
        """Drops a call whose answer is not wanted any more."""
        self._open.pop(number, None)

    def fail(self, error: ClientError) -> None:
        """Ends all calls."""
        calls = list(self._open.values())
        self._open.clear()
        for call in calls:
            call.settle(error)

    def frames(self) -> list[bytes]:
        """The requests of all calls, to be sent again."""
        return [call.frame() for call in self._open.values()]
