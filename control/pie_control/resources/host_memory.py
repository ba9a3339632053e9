"""Pages of host memory, where swapped-out pages wait."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import Shortage, exceeded
from pie_control.resources.pools import FreeList, PagePool, Retention
from pie_py.wire.plan import Int32, Uint32

# Pages that one batch swaps, and thus one command: a forward of another instance waits for no more.
MAX_SWAP_PAGES = 256


class HostMemory:
    """The host pages of one model, each held by one space, or by the prefix cache: these count as
    free, and `evict` gives them back when there are no others.

    `used`, `masks` and `immutable` are those of the page whose content a host page keeps. Commands
    name host pages after those of the KV pool, so that the scheduler orders them alike.
    """

    def __init__(self, size: int, first_name: int) -> None:
        self.size = size
        self.first_name = first_name
        self._free = FreeList(size)
        self.used: Int32 = np.zeros(size, np.int32)
        self.masks: Uint32 = np.zeros(size, np.uint32)
        self.immutable: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self.retention = Retention(size)
        self.cached = 0  # that the prefix cache holds
        self.evict: Callable[[int], None] = lambda count: None

    @property
    def free(self) -> int:
        """Free host pages, and those of the prefix cache."""
        return self._free.free + self.cached

    def allocate(self, count: int) -> Int32:
        """Takes `count` host pages, at most `free`."""
        if count > self._free.free:
            self.evict(count - self._free.free)
        return self._free.take(count)

    def release(self, pages: Int32) -> None:
        """Gives host pages back."""
        self._free.give(pages)

    def keep_state(self, hosts: Int32, pool: PagePool, pages: Int32) -> None:
        """Takes over what control knows of pages `[n]` whose content moves to host pages `[n]`."""
        self.used[hosts] = pool.used[pages]
        self.masks[hosts] = pool.masks[pages]
        self.immutable[hosts] = pool.immutable[pages]
        self.retention.take_over(hosts, pool.retention, pages)

    def restore_state(self, hosts: Int32, pool: PagePool, pages: Int32) -> None:
        """Gives it back to pages `[n]` to which the content of host pages `[n]` moves."""
        pool.used[pages] = self.used[hosts]
        pool.set_masks(pages, self.masks[hosts])
        pool.immutable[pages] = self.immutable[hosts]
        pool.retention.take_over(pages, self.retention, hosts)


def swap_parts(count: int) -> Iterator[slice]:
    """Parts of a list of `count` pages that one command may have."""
    for first in range(0, count, MAX_SWAP_PAGES):
        yield slice(first, first + MAX_SWAP_PAGES)


class HostPages:
    """The host pages of one instance."""

    def __init__(self, pool: HostMemory, limit: int | None) -> None:
        self.pool = pool
        self._limit = limit
        self.held = 0  # those too that commands name which are not sent

    def allocate(self, count: int) -> Int32:
        """Takes host pages. Raises ApiError `limit-exceeded`, `out-of-resources`."""
        pool = self.pool
        if self._limit is not None and self.held + count > self._limit:
            raise exceeded(
                f"{self.held} host pages held and {count} more wanted; an instance may hold"
                f" {self._limit}: swap some in, or discard them"
            )
        if count > pool.free:
            raise Shortage(
                f"{count} host pages wanted, and {pool.free} of {pool.size} are free;"
                " discard pages instead",
                "out-of-resources",
            )
        return self.take(count)

    def take(self, count: int) -> Int32:
        """Takes host pages, at most as many as are free, whatever the instance's limit."""
        self.held += count
        return self.pool.allocate(count)

    def release(self, pages: Int32) -> None:
        """Gives host pages back."""
        self.held -= len(pages)
        self.pool.release(pages)
