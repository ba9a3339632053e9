"""What an instance has done over time: its waits, and the batches that its commands were in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Literal, NamedTuple

SPAN_BYTES = 250  # that a span takes in memory, about


class Span(NamedTuple):
    """A time in the life of an instance. Times are nanoseconds since the Unix epoch.

    A wait is named by what was waited for, and lasts from the guest's turn before to the next. A
    batch is named by its kind, and lasts from its plan's sending to its results.
    """

    track: Literal["wait", "batch"]
    name: str
    begin_ns: int
    end_ns: int
    size: int = 0  # commands in the batch, of all instances
    device_ns: int = 0  # that the batch took at the worker


class Timeline:
    """The newest spans of one instance, in the order of their ends."""

    __slots__ = ("_asleep_for", "_asleep_ns", "_date_ns", "_spans", "total")

    def __init__(self, most: int, date_ns: Callable[[], int]) -> None:
        """Begins now, with the wait for the first turn.

        Args:
            most: spans kept.
            date_ns: nanoseconds since the Unix epoch.
        """
        self._spans: deque[Span] = deque(maxlen=most)
        self._date_ns = date_ns
        self._asleep_for = "launch"
        self._asleep_ns = date_ns()
        self.total = 0  # spans so far, dropped ones included

    def sleeps(self, reason: str) -> None:
        """The guest's turn has ended."""
        self._asleep_for = reason
        self._asleep_ns = self._date_ns()

    def wakes(self, reason: str | None) -> None:
        """The guest has its next turn; a reason says better what it has waited for."""
        self.add(self.wait_until_now(reason))

    def wait_until_now(self, reason: str | None) -> Span:
        """The wait that is under way, as far as it has lasted."""
        return Span("wait", reason or self._asleep_for, self._asleep_ns, self._date_ns())

    def add(self, span: Span) -> None:
        """Adds a span, once if it is added again at once."""
        spans = self._spans
        if not spans or spans[-1] is not span:
            self.total += 1
            spans.append(span)

    def after(self, number: int) -> list[Span]:
        """The spans from this number on, as far as they are kept."""
        first = self.total - len(self._spans)
        return list(islice(self._spans, max(0, number - first), None))

    @property
    def size_bytes(self) -> int:
        """Memory that the spans take, about."""
        return SPAN_BYTES * len(self._spans)
