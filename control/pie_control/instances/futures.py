"""Futures: the handles through which an instance learns of results that take time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np

from pie_control.errors import ApiError, Shortage, exceeded
from pie_py.config.limits import Limits

Key = TypeVar("Key")


class FutureKind(StrEnum):
    """Kinds of values in futures, named by the function that consumes them."""

    DONE = "take"
    TEXT = "take-text"
    TEXTS = "take-texts"
    BLOB = "take-blob"
    DIST = "take-dist"
    SAMPLE = "take-sample"
    RUN_TEXT = "take-run-text"
    GRAMMAR = "take-grammar"
    RESPONSE = "take-response"
    ATTENTION = "take-attention"
    HIDDEN = "take-hidden"
    ENCODED = "take-encoded"


TAKERS = {kind.value: kind for kind in FutureKind}  # by the names of those functions
CALLS = ("http ", "mcp ")  # how kinds of waits begin that are calls of tools
ANSWERS = (*CALLS, "child ", "client ")  # and those after which a program goes on with an answer


class Outside:
    """A wait for something outside the server: a tool, a host, a client, a time."""

    __slots__ = ("due", "kind", "since")

    def __init__(self, kind: str, since: float, due: float | None) -> None:
        self.kind = kind  # such as a tool's name: waits of one kind last alike
        self.since = since  # of the server's clock
        self.due = due  # of the same; None if the end is not known


class Future:
    """One result that is not there yet. Resolved or failed once; later answers are dropped.

    Once it is taken or cancelled it holds no callback: many hold the future, a circle.
    """

    __slots__ = (
        *("_table", "error", "handle", "kind", "on_cancel", "on_take", "outside", "ready", "size"),
        "value",
    )

    def __init__(self, table: FutureTable, handle: int, kind: FutureKind) -> None:
        self._table = table
        self.handle = handle
        self.kind = kind
        self.ready = False
        self.value: Any = None
        self.size = 0  # bytes that count as held until it is taken
        self.error: ApiError | None = None
        self.outside: Outside | None = None  # what it waits for, if that is measured
        self.on_cancel: Callable[[], None] | None = None
        self.on_take: Callable[[], None] | None = None  # its value has gone to the instance

    @property
    def waits_for(self) -> str:
        """The name of its wait: something outside by its own, the server's work by its kind."""
        return self.kind if self.outside is None else self.outside.kind

    def resolve(self, value: Any = None) -> None:
        """Gives the future its value, or an error if there is no room for that, and wakes the
        instance if it waits for it.
        """
        if self.ready:
            return
        # What a mailbox lends is counted there.
        if value is not None and self.on_take is None and (size := size_of(value)):
            if (error := self._table.refusal(size)) is not None:
                self.fail(error)
                return
            self.size = size
            self._table.hold(size)
        if self.outside is not None:
            self._table.note(self.outside)
        self.ready = True
        self.value = value
        self._table.announce(self.handle)

    def fail(self, error: ApiError) -> None:
        """Gives the future an error, which its taker receives.

        As a value: its traceback would hold the frames that hold the future, a circle for the
        collector, which comes seldom.
        """
        if not self.ready:
            if self.outside is not None:
                self._table.note(self.outside)
            self.ready = True
            self.error = error.with_traceback(None)
            error.__context__ = None
            self._table.announce(self.handle)


class FutureCount:
    """How many futures several instances have open, how many bytes of values that are not taken,
    and the most of both.
    """

    __slots__ = ("held", "most", "most_bytes", "open")

    def __init__(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.open = self.held = 0


class FutureTable:
    """The open futures of one instance, by handle. Handles are never used twice."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        note_wait: Callable[[str, float], None],
        of_user: FutureCount | None = None,
    ) -> None:
        """Opens nothing yet. `note_wait` gets kind and seconds of each wait outside whose end was
        not known; `of_user` counts the futures of the same user's other instances, too.
        """
        self._limits = limits
        self._of_user = of_user or FutureCount(limits.futures, limits.memory)
        self.held = 0  # bytes of values that are not taken
        self._clock = clock
        self._note_wait = note_wait
        self.outside_seconds = 0.0  # of calls of tools
        self._open: dict[int, Future] = {}
        self._next = 1
        self.announce: Callable[[int], None] = unheard  # set by the executor
        self.on_call: Callable[[], None] | None = None  # an answer has come from outside

    def __len__(self) -> int:
        return len(self._open)

    def create(self, kind: FutureKind) -> Future:
        """Opens a future of the server's own work.

        Raises:
            ApiError: `limit-exceeded` if too many are open, of this instance or of its user.
        """
        if len(self._open) >= self._limits.futures or self._of_user.open >= self._of_user.most:
            raise self._full()
        self._of_user.open += 1
        future = self._open[self._next] = Future(self, self._next, kind)
        self._next += 1
        return future

    def create_outside(self, kind: FutureKind, what: str, seconds: float | None = None) -> Future:
        """Opens a future of something outside, so that its duration is learned.

        `what` names the kind of wait, such as a tool: those of one name last alike. It takes
        `seconds`, if that is known.

        Raises:
            ApiError: `limit-exceeded` if too many are open, of this instance or of its user.
        """
        future, now = self.create(kind), self._clock()
        future.outside = Outside(what, now, None if seconds is None else now + seconds)
        return future

    def open(
        self, kind: FutureKind, begin: Callable[[Future], None], outside: str | None = None
    ) -> int:
        """Opens a future for what `begin` begins, and returns its handle; none stays open if it
        can't begin. `outside` is as the `what` of `create_outside`.

        Raises:
            ApiError: as `create`, and as `begin`.
        """
        future = self.create(kind) if outside is None else self.create_outside(kind, outside)
        try:
            begin(future)
        except ApiError:
            self.cancel(future.handle)
            raise
        return future.handle

    def note(self, wait: Outside) -> None:
        """A wait outside is over: reports how long it has lasted, unless that was known."""
        if wait.due is not None:
            return
        seconds = self._clock() - wait.since
        self.outside_seconds += seconds if wait.kind.startswith(CALLS) else 0.0
        self._note_wait(wait.kind, seconds)
        if self.on_call is not None and wait.kind.startswith(ANSWERS):
            self.on_call()

    def _full(self) -> ApiError:
        mend = "take or cancel some before opening more"
        if len(self._open) >= self._limits.futures:
            return exceeded(f"{self._limits.futures} futures are open; {mend}")
        return Shortage(
            f"your instances have {self._of_user.most} futures open, the most that one user may"
            f" have here; {mend}"
        )

    def hold(self, size: int) -> None:
        """So many bytes of values more are not taken, or fewer."""
        self.held += size
        self._of_user.held += size

    def refusal(self, size: int) -> ApiError | None:
        """The error of a value of so many bytes for which there is no room."""
        mend = "take or cancel some results before others come"
        if self.held + size > self._limits.memory:
            most = self._limits.memory >> 20
            return exceeded(f"results that it has not taken have {most} MiB, its memory; {mend}")
        if self._of_user.held + size > self._of_user.most_bytes:
            most = self._of_user.most_bytes >> 20
            return Shortage(f"results that your instances have not taken have {most} MiB; {mend}")
        return None

    def _close(self, future: Future) -> None:
        del self._open[future.handle]
        self._of_user.open -= 1
        if future.size:
            self.hold(-future.size)

    def open_ones(self) -> Iterable[tuple[int, Future]]:
        """The open futures and their handles."""
        return self._open.items()

    def find(self, handle: int) -> Future | None:
        """An open future, if it is one."""
        return self._open.get(handle)

    def get(self, handle: int) -> Future:
        """Finds an open future. Raises ApiError `invalid-handle`."""
        try:
            return self._open[handle]
        except KeyError:
            raise ApiError(
                "invalid-handle", f"{handle} is no open future (taken or cancelled already?)"
            ) from None

    def of_kind(self, handle: int, kind: FutureKind) -> Future:
        """Finds an open future of a kind. Raises ApiError `invalid-handle`."""
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
        self._close(future)
        future.on_cancel = None
        if future.on_take is not None:
            taken, future.on_take = future.on_take, None
            taken()
        if future.error is not None:
            raise future.error
        return future.value

    def cancel(self, handle: int) -> None:
        """Gives a future up. Raises ApiError `invalid-handle`."""
        future = self.get(handle)
        self._close(future)
        future.ready = True  # a late answer is dropped
        future.on_take = None
        if future.on_cancel is not None:
            cancelled, future.on_cancel = future.on_cancel, None
            cancelled()

    def close(self) -> None:
        """Cancels every open future: the instance has ended."""
        self.on_call = None
        for handle in list(self._open):
            self.cancel(handle)


def wait_in(waiters: dict[Key, dict[Future, None]], key: Key, future: Future) -> None:
    """Has a future wait with the others of a key, in order, unless it is cancelled."""

    def give_up() -> None:
        waiting = waiters.get(key)
        if waiting is not None and waiting.pop(future, 0) is None and not waiting:
            del waiters[key]

    waiters.setdefault(key, {})[future] = None
    future.on_cancel = give_up


def size_of(value: Any) -> int:
    """Bytes that a value has in memory, about."""
    match value:
        case np.ndarray():
            return value.nbytes
        case str() | bytes():
            return len(value)
        case tuple() | list():
            return sum(map(size_of, value))
    return 0


def unheard(handle: int) -> None:
    """No one waits for the future."""
