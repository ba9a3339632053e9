"""The records of an inferlet for people: its newest log lines, the contexts it has released."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

LINE_OVERHEAD = 200  # bytes that a line takes in addition to its text
LINE_CHARACTERS = 4096  # the rest of a longer line is dropped


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line that an inferlet logged."""

    time_ns: int  # Unix epoch
    level: str  # debug, info, warning, error
    text: str


class Log:
    """The newest lines of one instance, oldest first."""

    __slots__ = ("_date_ns", "_lines", "_most", "total")

    def __init__(self, most: int, date_ns: Callable[[], int]) -> None:
        """Takes the most lines, and the date in nanoseconds since the Unix epoch."""
        # Most instances log nothing, and an empty deque takes 760 bytes.
        self._lines: deque[LogLine] | tuple[()] = ()
        self._most = most
        self._date_ns = date_ns
        self.total = 0  # lines added so far, dropped ones included

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[LogLine]:
        return iter(self._lines)

    def add(self, level: str, text: str) -> None:
        """Appends a line and drops the oldest one if the log is full."""
        self.total += 1
        if not isinstance(self._lines, deque):
            self._lines = deque(maxlen=self._most)
        self._lines.append(LogLine(self._date_ns(), level, text[:LINE_CHARACTERS]))

    def shrink(self, most_bytes: int) -> None:
        """Drops the oldest lines until the rest takes so little, about."""
        more = self.size_bytes - most_bytes
        while isinstance(self._lines, deque) and more > 0:
            more -= len(self._lines.popleft().text) + LINE_OVERHEAD

    def part(self, after: int, most_bytes: int) -> tuple[list[LogLine], int]:
        """Some of the lines, from a number on, counted from the first line ever added, and the
        number of the one that follows. They take `most_bytes`, about; one may go over it.
        """
        first = max(after, self.total - len(self._lines))
        lines: list[LogLine] = []
        size = 0
        for line in islice(self._lines, first - self.total + len(self._lines), None):
            if size > most_bytes:
                break
            lines.append(line)
            size += len(line.text) + LINE_OVERHEAD
        return lines, min(first, self.total) + len(lines)

    @property
    def size_bytes(self) -> int:
        """Memory that the lines take, about."""
        return sum(len(line.text) + LINE_OVERHEAD for line in self._lines)


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
