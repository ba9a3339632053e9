"""The contexts that an instance has released, for people who look at what it has forked."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

MOST = 64  # contexts, the newest
MOST_TOKENS = 16384  # of all of them
OVERHEAD = 300  # bytes


@dataclass(frozen=True, slots=True)
class Released:
    """A context that is no more: a queue, and the text that it has run."""

    handle: int
    queue: int  # its number
    model: str
    parent: int | None  # number of the queue that had written what it began with
    begins: int  # tokens that it began with
    created_ns: int
    released_ns: int
    tokens: array[int]


class ReleasedContexts:
    """Those of one instance, the oldest first."""

    __slots__ = ("_all", "_tokens")

    def __init__(self) -> None:
        self._all: deque[Released] | tuple[()] = ()  # most instances have one at their end
        self._tokens = 0

    def __iter__(self) -> Iterator[Released]:
        return iter(self._all)

    def add(self, released: Released) -> None:
        """Keeps one; older ones make room."""
        if not isinstance(self._all, deque):
            self._all = deque()
        self._all.append(released)
        self._tokens += len(released.tokens)
        while len(self._all) > MOST or (self._tokens > MOST_TOKENS and len(self._all) > 1):
            self._tokens -= len(self._all.popleft().tokens)

    @property
    def size_bytes(self) -> int:
        """Memory that they take, about."""
        return OVERHEAD * len(self._all) + 4 * self._tokens
