"""The log of an inferlet: its newest lines, and how many there have been."""

from __future__ import annotations

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
