"""Retention priorities of pages, by their programs: which leave first when memory is short."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pie_py.wire.plan import Int32

T = TypeVar("T")


class Retention:
    """Priorities of the pages of a pool, 0 by default. Those above it hold for a time."""

    def __init__(self, size: int) -> None:
        self._priorities: NDArray[np.int8] = np.zeros(size, np.int8)
        self._until: NDArray[np.float64] = np.zeros(size, np.float64)
        self.rated = 0  # pages with another priority

    def set(self, pages: Int32, priority: int, until: float) -> None:
        """Gives distinct pages a priority, -100 to 100; above 0 up to a time, in seconds."""
        self._write(pages, np.full(len(pages), priority, np.int8))
        self._until[pages] = until

    def of(self, pages: Int32, now: float) -> NDArray[np.int8]:
        """The priorities `[n]` of pages at a time."""
        priorities = self._priorities[pages]
        priorities[(priorities > 0) & (self._until[pages] <= now)] = 0
        return priorities

    def lift(self, pages: Int32) -> None:
        """Forgets what was said of distinct pages below 0: they are wanted after all."""
        if self.rated:
            self._write(pages, np.maximum(self._priorities[pages], 0))

    def forget(self, pages: Int32) -> None:
        """Forgets what was said of distinct pages, which are free."""
        if self.rated:
            self._write(pages, np.zeros(len(pages), np.int8))

    def take_over(self, pages: Int32, source: Retention, others: Int32) -> None:
        """Has what another pool's pages `[n]` have, whose content moves to distinct `pages`."""
        if self.rated or source.rated:
            self._write(pages, source._priorities[others])
            self._until[pages] = source._until[others]

    def _write(self, pages: Int32, priorities: NDArray[np.int8]) -> None:
        before = np.count_nonzero(self._priorities[pages])
        self.rated += int(np.count_nonzero(priorities)) - int(before)
        self._priorities[pages] = priorities


def within_users(order: Sequence[T], users: Sequence[Hashable], worth: Sequence[int]) -> list[T]:
    """An order of eviction, the first to leave first, in which each user's items change places by
    what they are worth. So no user's pages leave earlier for what others have said of theirs.
    """
    own: dict[Hashable, list[int]] = {}
    for at, user in enumerate(users):
        own.setdefault(user, []).append(at)
    waiting = {user: iter(sorted(places, key=worth.__getitem__)) for user, places in own.items()}
    return [order[next(waiting[user])] for user in users]
