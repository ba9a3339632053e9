"""Futures: the handles through which an instance learns of results that take time."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

from pie_control.errors import ApiError


class FutureKind(Enum):
    """What a future carries, which decides the function that consumes it."""

    DONE = "take"
    TEXT = "take-text"
    TEXTS = "take-texts"
    BLOB = "take-blob"
    DIST = "take-dist"
    SAMPLE = "take-sample"
    GRAMMAR = "take-grammar"
    RESPONSE = "take-response"
    ATTENTION = "take-attention"


class Outside:
    """What a future waits for outside the server's own work: a tool, a host, a client, a time."""

    __slots__ = ("due", "ended", "kind", "since")

    def __init__(
        self, kind: str, ended: Callable[[str, float], None], due: float | None = None
    ) -> None:
        """Takes a kind of wait, who is told of kind and seconds at its end, and the end if known."""
        self.kind = kind
        self.ended = ended
        self.since = time.monotonic()
        self.due = due  # of the same clock


class Future:
    """One result that is not there yet. Resolved or failed once; later answers are dropped."""

    outside: ClassVar[Outside | None] = None  # of an `OutsideFuture` only

    __slots__ = ("_table", "error", "handle", "kind", "on_cancel", "on_take", "ready", "value")

    def __init__(self, table: FutureTable, handle: int, kind: FutureKind) -> None:
        self._table = table
        self.handle = handle
        self.kind = kind
        self.ready = False
        self.value: Any = None
        self.error: ApiError | None = None
        self.on_cancel: Callable[[], None] | None = None
        self.on_take: Callable[[], None] | None = None  # its value has gone to the instance

    def resolve(self, value: Any = None) -> None:
        """Gives the future its value and wakes the instance if it waits for it."""
        if not self.ready:
            self.ready = True
            self.value = value
            self._table.announce(self.handle)

    def fail(self, error: ApiError) -> None:
        """Gives the future an error, which its taker receives."""
        if not self.ready:
            self.ready = True
            self.error = error
            self._table.announce(self.handle)


class OutsideFuture(Future):
    """A future whose wait is measured."""

    __slots__ = ("outside",)

    outside: Outside  # type: ignore[misc]

    def resolve(self, value: Any = None) -> None:
        """As `Future.resolve`."""
        self._note()
        super().resolve(value)

    def fail(self, error: ApiError) -> None:
        """As `Future.fail`."""
        self._note()
        super().fail(error)

    def _note(self) -> None:
        wait = self.outside
        if not self.ready and wait.due is None:
            wait.ended(wait.kind, time.monotonic() - wait.since)


class FutureTable:
    """The open futures of one instance, by handle. Handles are never used twice."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[int, Future] = {}
        self._next = 1
        self.announce: Callable[[int], None] = lambda handle: None  # set by the instance

    def __len__(self) -> int:
        return len(self._open)

    def create(self, kind: FutureKind, outside: Outside | None = None) -> Future:
        """Opens a future; `outside` says what it waits for, if that is not the server's own work.

        Raises:
            ApiError: `limit-exceeded` if too many are open.
        """
        if len(self._open) >= self._limit:
            raise ApiError(
                "limit-exceeded",
                f"{self._limit} futures are open; take or cancel some before opening more",
            )
        if outside is None:
            future = Future(self, self._next, kind)
        else:
            future = OutsideFuture(self, self._next, kind)
            future.outside = outside
        self._open[self._next] = future
        self._next += 1
        return future

    def find(self, handle: int) -> Future | None:
        """An open future, if it is one."""
        return self._open.get(handle)

    def get(self, handle: int) -> Future:
        """Finds an open future.

        Raises:
            ApiError: `invalid-handle`.
        """
        try:
            return self._open[handle]
        except KeyError:
            raise ApiError(
                "invalid-handle", f"{handle} is no open future (taken or cancelled already?)"
            ) from None

    def of_kind(self, handle: int, kind: FutureKind) -> Future:
        """Finds an open future of a kind.

        Raises:
            ApiError: `invalid-handle`.
        """
        future = self.get(handle)
        if future.kind is not kind:
            raise ApiError(
                "invalid-handle", f"future {handle} is consumed by `{future.kind.value}`"
            )
        return future

    def ready_of(self, handles: list[int]) -> list[int]:
        """Those of the handles whose futures are ready, in the order given.

        Raises:
            ApiError: `invalid-handle`.
        """
        table = self._open
        try:
            return [handle for handle in handles if table[handle].ready]
        except KeyError as missing:
            raise ApiError(
                "invalid-handle",
                f"{missing.args[0]} is no open future (taken or cancelled already?)",
            ) from None

    def take(self, handle: int, kind: FutureKind) -> Any:
        """Consumes a ready future and returns its value.

        Raises:
            ApiError: `invalid-handle`, `not-ready`, or the error the future failed with.
        """
        future = self.of_kind(handle, kind)
        if not future.ready:
            raise ApiError("not-ready", f"future {handle} is not ready: wait for it first")
        del self._open[handle]
        if future.on_take is not None:
            future.on_take()
        if future.error is not None:
            raise future.error
        return future.value

    def cancel(self, handle: int) -> None:
        """Gives a future up.

        Raises:
            ApiError: `invalid-handle`.
        """
        future = self.get(handle)
        del self._open[handle]
        future.ready = True  # a late answer is dropped
        if future.on_cancel is not None:
            future.on_cancel()

    def close(self) -> None:
        """Cancels every open future: the instance has ended."""
        for handle in list(self._open):
            self.cancel(handle)
