"""The physical pages and embeds of one model: the free ones, and the state of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.resources.retention import Retention
from pie_py.wire.plan import Int32, Uint32

# Calls back once no queued command names some pages, embeds and samplers any more, which are given
# as commands name them.
Defer: TypeAlias = Callable[[list[int], list[int], Callable[[], None]], None]


class FreeList:
    """Free physical ids, last in, first out."""

    def __init__(self, size: int) -> None:
        self._ids = np.arange(size - 1, -1, -1, dtype=np.int32)
        self.size = self.free = size

    def take(self, count: int) -> Int32:
        """Removes `count` ids, which must be there, and returns them `[count]`."""
        self.free -= count
        return self._ids[self.free : self.free + count][::-1].copy()

    def give(self, ids: Int32) -> None:
        """Puts ids back."""
        self._ids[self.free : self.free + len(ids)] = ids
        self.free += len(ids)

    def give_one(self, number: int) -> None:
        """Puts one id back."""
        self._ids[self.free] = number
        self.free += 1


class PagePool:
    """KV pages, counted by reference: an address of a space and an export each hold one.

    `used`, `masks` and `immutable` are indexed by physical page and have a page's state as if every
    queued command had run. `stamps` grow whenever a page's slots may have changed in another way
    than by more of them being filled.

    The prefix cache holds pages, too; those without another holder are *idle*: they count as free,
    and `evict` gets them back when there are no others.
    """

    def __init__(self, size: int, page_size: int) -> None:
        self.size = size
        self.page_size = page_size
        self._free = FreeList(size)
        self._references: Int32 = np.zeros(size, np.int32)
        self.used: Int32 = np.zeros(size, np.int32)  # filled slots, always the first ones
        self.masks: Uint32 = np.zeros(size, np.uint32)  # bit i hides slot i
        self.masked = 0  # pages with a masked slot
        self.immutable: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self.stamps: NDArray[np.int64] = np.zeros(size, np.int64)
        self.retention = Retention(size)
        self.epoch = 0  # of the weights that fill pages from now on
        self.cached: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._cached = 0  # how many
        self.idle = 0  # cached pages that only the prefix cache holds
        # Uncaches at least so many idle ones.
        self.evict: Callable[[int], None] = lambda count: None

    @property
    def free(self) -> int:
        """Free pages, and those that only the prefix cache holds."""
        return self._free.free + self.idle

    def allocate(self, count: int) -> Int32:
        """Takes `count` empty pages, at most `free`, with one reference each."""
        if count > self._free.free:
            self.evict(count - self._free.free)
        pages = self._free.take(count)
        self._references[pages] = 1
        return pages

    def retain(self, pages: Int32) -> None:
        """Adds a reference to each page; a page may occur more than once."""
        if self.idle:
            self.idle -= self._count_idle(pages)
        np.add.at(self._references, pages, 1)

    def release(self, pages: Int32) -> None:
        """Drops a reference of each page; one without any left is empty and free again."""
        np.subtract.at(self._references, pages, 1)
        if self._cached:
            self.idle += self._count_idle(pages)
        freed = pages[self._references[pages] == 0]
        if len(freed) > 1:
            freed = np.unique(freed)
        self.set_masks(freed, np.zeros(len(freed), np.uint32))
        self.used[freed] = 0
        self.immutable[freed] = False
        self.retention.forget(freed)
        self._free.give(freed)

    def cache(self, pages: Int32) -> None:
        """The prefix cache holds these distinct pages, too; they are immutable from now on."""
        self._references[pages] += 1
        self._cached += len(pages)
        self.cached[pages] = True
        self.immutable[pages] = True

    def uncache(self, pages: Int32) -> None:
        """The prefix cache holds these distinct pages no longer."""
        self.idle -= self._count_idle(pages)
        self._cached -= len(pages)
        self.cached[pages] = False
        self.release(pages)

    def idle_pages(self) -> Int32:
        """Pages that only the prefix cache holds."""
        return np.flatnonzero(self.cached & (self._references == 1)).astype(np.int32)

    def _count_idle(self, pages: Int32) -> int:
        idle = pages[self.cached[pages] & (self._references[pages] == 1)]
        return len(np.unique(idle)) if len(idle) > 1 else len(idle)

    def shared(self, pages: Int32) -> NDArray[np.bool_]:
        """Which of the pages others hold too, not counting the prefix cache."""
        return self._references[pages] > 1 + self.cached[pages]

    def set_masks(self, pages: Int32, masks: Uint32) -> None:
        """Sets the mask words of distinct pages."""
        self.stamps[pages] += 1
        self.masked += int(np.count_nonzero(masks)) - int(np.count_nonzero(self.masks[pages]))
        self.masks[pages] = masks


class EmbedPool:
    """Embeds, each held by one space."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = FreeList(size)
        # An embed that nothing was written to holds what its last owner left, so it must not be
        # read.
        self.written: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self.places = [0] * size  # positions, as if every queued command had run

    @property
    def free(self) -> int:
        """Free embeds."""
        return self._free.free

    def allocate(self, count: int) -> Int32:
        """Takes `count` embeds, at most `free`."""
        return self._free.take(count)

    def release(self, embeds: Int32) -> None:
        """Gives embeds back."""
        self.written[embeds] = False
        self._free.give(embeds)
