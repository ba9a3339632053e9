"""Callbacks at a later time, thousands of them, served by one task."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable

import trio


class Timer:
    """A callback that waits for its time."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Withdraws the callback; it will not be called."""
        self.callback = None


class Timers:
    """A heap of timers. `run` calls them; nothing fires before it runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Takes trio's clock, in seconds: `run` sleeps by it."""
        self._clock = clock
        self._heap: list[tuple[float, int, Timer]] = []
        self._cleaned = 0  # entries that the last cleaning has left
        self._order = itertools.count()
        self._changed = trio.Event()

    def __len__(self) -> int:
        """Timers that wait, some of which may have been withdrawn."""
        return len(self._heap)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Calls back once, after at least this many seconds."""
        timer = Timer(callback)
        due = self._clock() + seconds
        if not self._heap or due < self._heap[0][0]:
            self._changed.set()
        heapq.heappush(self._heap, (due, next(self._order), timer))
        if len(self._heap) > 2 * self._cleaned + 64:  # `run` may sleep for an hour
            self._drop_cancelled()
        return timer

    async def run(self) -> None:
        """Serves the timers until cancelled."""
        while True:
            self._changed = trio.Event()
            with trio.move_on_at(self.due):
                await self._changed.wait()
            self.fire()

    @property
    def due(self) -> float:
        """When the next one is to be called."""
        while self._heap and self._heap[0][2].callback is None:  # no reason to wake
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def fire(self) -> None:
        """Calls what is due."""
        now = self._clock()
        while self._heap and self._heap[0][0] <= now:
            callback = heapq.heappop(self._heap)[2].callback
            if callback is not None:
                callback()

    def _drop_cancelled(self) -> None:
        # Far-off timers of ended instances would otherwise stay until they are due.
        live = sum(timer.callback is not None for _, _, timer in self._heap)
        if len(self._heap) > 64 and live * 2 < len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
        self._cleaned = len(self._heap)
