"""What happened before what: on streams, on the host, and between them.

Every stream and the host is a line of events with a vector clock (Lamport 1978; Fidge 1988). Two
uses of a buffer of which one writes are a hazard unless one comes before the other.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

Span = tuple[float, float]  # bytes, from and to
WHOLE: Span = (0, float("inf"))
Stamp = tuple[int, int]  # a line, and how many events it had then

_numbers = itertools.count()


class Hazard(AssertionError):
    """Memory was used by two lines with nothing that orders them."""


class Line:
    """A stream, or the host."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.number = next(_numbers)
        self.seen: dict[int, int] = {self.number: 0}
        self._changes = 0
        self._others: dict[int, int] = {}  # changes of other lines that are in `seen`

    def __repr__(self) -> str:
        return self.name

    def event(self) -> Stamp:
        """Something happens on this line."""
        self.seen[self.number] += 1
        self._changes += 1
        return self.number, self.seen[self.number]

    def after(self, seen: dict[int, int]) -> None:
        """What comes now comes after all that another line had seen."""
        self._changes += 1
        for number, count in seen.items():
            if count > self.seen.get(number, -1):
                self.seen[number] = count

    def after_line(self, other: Line) -> None:
        """What comes now comes after all that another line has seen by now."""
        if self._others.get(other.number) != other._changes:
            self._others[other.number] = other._changes
            self.after(other.seen)

    def knows(self, stamp: Stamp) -> bool:
        """Whether an event comes before what happens now."""
        return self.seen.get(stamp[0], -1) >= stamp[1]


@dataclass(frozen=True, slots=True)
class _Use:
    span: Span
    line: int
    stamp: Stamp
    writes: bool
    why: str


class Uses:
    """Who wrote parts of some memory last, and who has read them since."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._uses: list[_Use] = []

    def read(self, line: Line, stamp: Stamp, why: str, span: Span = WHOLE) -> None:
        """Raises `Hazard` if what was written is not there yet."""
        for use in self._uses:
            if use.writes and _overlap(use.span, span) and not line.knows(use.stamp):
                raise Hazard(f"{why} on {line} reads {self.what} while {use.why} writes it")
        self._uses = [
            u for u in self._uses if u.writes or u.line != line.number or not _covers(span, u.span)
        ]
        self._uses.append(_Use(span, line.number, stamp, False, why))

    def write(self, line: Line, stamp: Stamp, why: str, span: Span = WHOLE) -> None:
        """Raises `Hazard` if somebody may still read or write."""
        for use in self._uses:
            if _overlap(use.span, span) and not line.knows(use.stamp):
                raise Hazard(f"{why} on {line} writes {self.what} while {use.why} uses it")
        self._uses = [u for u in self._uses if not _covers(span, u.span)]
        self._uses.append(_Use(span, line.number, stamp, True, why))

    def pending(self, line: Line) -> str | None:
        """A use that does not come before what happens now on a line."""
        return next((use.why for use in self._uses if not line.knows(use.stamp)), None)

    def lines(self) -> set[int]:
        """Who uses it."""
        return {use.line for use in self._uses}


def _overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def _covers(outer: Span, inner: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]
