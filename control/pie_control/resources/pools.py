"""The physical pages and embeds of one model: which are free, and what control knows of the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pie_py.wire.plan import Int32, Uint32


class FreeList:
    """Physical ids that nobody holds, last in, first out."""

    def __init__(self, size: int) -> None:
        self._ids = np.arange(size - 1, -1, -1, dtype=np.int32)
        self.free = size

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

    `used`, `masks` and `immutable` are indexed by physical page and tell a page's state as if every
    queued command had run.
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

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return self._free.free

    def allocate(self, count: int) -> Int32:
        """Takes `count` empty pages, at most `free`, with one reference each."""
        pages = self._free.take(count)
        self._references[pages] = 1
        return pages

    def retain(self, pages: Int32) -> None:
        """Adds a reference to each page; a page may occur more than once."""
        np.add.at(self._references, pages, 1)

    def release(self, pages: Int32) -> None:
        """Drops a reference of each page; one without any left is empty and free again."""
        np.subtract.at(self._references, pages, 1)
        freed = pages[self._references[pages] == 0]
        if len(freed) > 1:
            freed = np.unique(freed)
        self.set_masks(freed, np.zeros(len(freed), np.uint32))
        self.used[freed] = 0
        self.immutable[freed] = False
        self._free.give(freed)

    def shared(self, pages: Int32) -> NDArray[np.bool_]:
        """Which of the pages have several references."""
        return self._references[pages] > 1

    def set_masks(self, pages: Int32, masks: Uint32) -> None:
        """Sets the mask words of distinct pages."""
        self.masked += int(np.count_nonzero(masks)) - int(np.count_nonzero(self.masks[pages]))
        self.masks[pages] = masks


class EmbedPool:
    """Embeds, each held by one space."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = FreeList(size)
        # An embed that nothing was written to holds what its last owner left, so it must not be read.
        self.written: NDArray[np.bool_] = np.zeros(size, np.bool_)

    @property
    def free(self) -> int:
        """Embeds that nobody holds."""
        return self._free.free

    def allocate(self, count: int) -> Int32:
        """Takes `count` embeds, at most `free`."""
        return self._free.take(count)

    def release(self, embeds: Int32) -> None:
        """Gives embeds back."""
        self.written[embeds] = False
        self._free.give(embeds)
