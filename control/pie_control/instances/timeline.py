"""Timeline of an instance: its waits, and the batches that its commands were in."""

from __future__ import annotations

from itertools import islice
from typing import Any, Literal, TypedDict

import msgspec

SPAN_BYTES = 250  # that a span takes in memory, about, until it is packed
Spans = list[tuple[Any, ...]]
SPARE = 64  # spans by which there may be too many, so that few appends have to drop some


class Span(TypedDict):
    """A time while an instance runs. Times are nanoseconds since the Unix epoch.

    A wait is named by what was waited for, and lasts from the guest's turn before to the next. A
    batch is named by its kind, and lasts from its plan's sending to its results.
    """

    track: Literal["wait", "batch"]
    name: str
    begin_ns: int
    end_ns: int
    size: int  # commands in the batch, of all instances; 0 of a wait
    device_ns: int  # that the batch took at the worker; 0 of a wait


class Timeline:
    """The newest spans of one instance, in the order of their ends.

    Every token makes some and few are ever read, so they are stored as the values of a `Span`, in
    plain tuples, with times of the executor's clock; the instances of a batch share one.
    """

    __slots__ = (
        "_asleep_for",
        "_asleep_ns",
        "_dropped",
        "_most",
        "_packed",
        "_packed_count",
        "full",
        "spans",
    )

    def __init__(self, most: int) -> None:
        """Begins with the wait for the first turn. Takes the most spans."""
        self.spans: Spans = []  # a caller that adds one calls `trim`, sooner or later
        self._packed = b""  # earlier spans, once the instance has ended
        self._packed_count = 0
        self._most = most
        self.full = most + SPARE  # with more spans than these it is to be trimmed
        self._dropped = 0
        self._asleep_for = "launch"
        self._asleep_ns = 0  # before its launch, which `_dated` sets right

    def turn(self, waited_for: str | None, woken_ns: int, asleep_ns: int, asleep_for: str) -> None:
        """The guest has had a turn, from `woken_ns` to `asleep_ns`.

        `waited_for`, if not None, says better than the turn before what it has waited for;
        `asleep_for` what it waits for now, as far as that is known.
        """
        self.spans.append(("wait", waited_for or self._asleep_for, self._asleep_ns, woken_ns, 0, 0))
        self._asleep_for, self._asleep_ns = asleep_for, asleep_ns
        if len(self.spans) > self.full:
            self.trim()

    def add(self, batch: tuple[Any, ...]) -> None:
        """Adds a batch, once if it is added again at once; the guest's next turn trims."""
        spans = self.spans
        if not spans or spans[-1] is not batch:
            spans.append(batch)

    def trim(self) -> None:
        """Drops the oldest spans if there are too many."""
        if len(self.spans) > self.full:
            many = len(self.spans) - self._most
            del self.spans[:many]
            self._dropped += many

    def drop(self) -> None:
        """Drops all: the instance sleeps."""
        self._dropped += len(self.spans)
        self.spans.clear()

    def pack(self) -> None:
        """The instance has ended: its spans take little memory. Batches under way may come."""
        spans = self._all()
        self._packed = msgspec.msgpack.encode(spans)
        self._packed_count = len(spans)
        self.spans.clear()

    def _all(self) -> Spans:
        packed = msgspec.msgpack.decode(self._packed, type=Spans) if self._packed else []
        return [*packed, *self.spans]

    @property
    def total(self) -> int:
        """Spans so far, dropped ones included."""
        return self._dropped + self._packed_count + len(self.spans)

    def after(self, number: int, epoch_ns: int, begun_ns: int) -> list[Span]:
        """The spans from a number on, counted from the launch, as far as there are any. The
        executor's clock was 0 at the date `epoch_ns`, and the launch was at `begun_ns`.
        """
        first = max(0, number - self._dropped)
        return [_dated(span, epoch_ns, begun_ns) for span in islice(self._all(), first, None)]

    def wait_until(self, now_ns: int, reason: str | None, epoch_ns: int, begun_ns: int) -> Span:
        """The wait that is under way, as far as it has lasted until a time of the executor's
        clock; otherwise as `turn` and `after`.
        """
        wait = "wait", reason or self._asleep_for, self._asleep_ns, now_ns, 0, 0
        return _dated(wait, epoch_ns, begun_ns)

    @property
    def size_bytes(self) -> int:
        """Memory that the spans take, about."""
        return len(self._packed) + SPAN_BYTES * len(self.spans)


def _dated(span: tuple[Any, ...], epoch_ns: int, begun_ns: int) -> Span:
    track, name, begin, end, size, device = span
    return {
        "track": track,
        "name": name,
        "begin_ns": max(begin + epoch_ns, begun_ns),
        "end_ns": max(end + epoch_ns, begun_ns),
        "size": size,
        "device_ns": device,
    }
