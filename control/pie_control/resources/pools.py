"""The physical pages and embeds of one model, and host memory's pages: the free ones, the state of
the others, and users' allotments of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import Shortage, exceeded
from pie_py.wire.plan import Int32, Uint32

T = TypeVar("T")


class Retention:
    """Priorities of the pages of a pool, by their programs: which leave first when memory is short.
    0 by default; those above it hold for a time.
    """

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
        self.free = size  # free pages, and those that only the prefix cache holds
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

    def allocate(self, count: int) -> Int32:
        """Takes `count` empty pages, at most `free`, with one reference each."""
        if count > self._free.free:
            self.evict(count - self._free.free)
        pages = self._free.take(count)
        self.free -= count
        self._references[pages] = 1
        return pages

    def retain(self, pages: Int32) -> None:
        """Adds a reference to each page; a page may occur more than once."""
        if self.idle:
            self._add_idle(pages, -1)
        np.add.at(self._references, pages, 1)

    def release(self, pages: Int32) -> None:
        """Drops a reference of each page; one without any left is empty and free again."""
        np.subtract.at(self._references, pages, 1)
        if self._cached:
            self._add_idle(pages, 1)
        freed = pages[self._references[pages] == 0]
        if len(freed) > 1:
            freed = np.unique(freed)
        self.set_masks(freed, np.zeros(len(freed), np.uint32))
        self.used[freed] = 0
        self.immutable[freed] = False
        self.retention.forget(freed)
        self._free.give(freed)
        self.free += len(freed)

    def cache(self, pages: Int32) -> None:
        """The prefix cache holds these distinct pages, too; they are immutable from now on."""
        self._references[pages] += 1
        self._cached += len(pages)
        self.cached[pages] = True
        self.immutable[pages] = True

    def uncache(self, pages: Int32) -> None:
        """The prefix cache holds these distinct pages no longer."""
        self._add_idle(pages, -1)
        self._cached -= len(pages)
        self.cached[pages] = False
        self.release(pages)

    def idle_pages(self) -> Int32:
        """Pages that only the prefix cache holds."""
        return np.flatnonzero(self.cached & (self._references == 1)).astype(np.int32)

    def _add_idle(self, pages: Int32, sign: int) -> None:
        """Those of the pages that only the prefix cache holds begin or cease to be idle."""
        idle = pages[self.cached[pages] & (self._references[pages] == 1)]
        count = sign * (len(np.unique(idle)) if len(idle) > 1 else len(idle))
        self.idle += count
        self.free += count

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


class Holder(Protocol):
    """An instance."""

    number: int  # of launches before its own
    user: str


class Allotments:
    """Which instances make way for others while a pool is short.

    What is free and what users hold above their allotments is always enough for a user who stays
    within their own, so they never have to wait until others give something up by themselves.
    """

    def __init__(self, size: int, held: Mapping[str, int], exactly: Callable[[str], int]) -> None:
        """Takes the size of the pool and what each user with an instance holds of it at most: what
        several hold may be in it twice. `exactly` looks at what a user holds, once each.
        """
        self._allotment = size / max(1, len(held))
        self._held = {
            user: count if count <= self._allotment else exactly(user)
            for user, count in held.items()
        }

    def within(self, user: str, count: int) -> bool:
        """True if a user with `count` more still holds no more than their allotment."""
        return self._held[user] + count <= self._allotment

    def makes_way(self, other: Holder, instance: Holder, count: int) -> bool:
        """True if an instance must give up what it holds so that another one gets `count` more.

        Within a user the younger one makes way. Of another user it does if they hold more than
        their allotment: each of their instances for a user within their own, else the younger ones.
        """
        younger = other.number > instance.number
        if other.user == instance.user:
            return younger
        above = not self.within(other.user, 0)
        return above and (younger or self.within(instance.user, count))

    def owe(self, user: str, count: int) -> bool:
        """True if users hold above their allotments what another one wants within their own."""
        return self.within(user, count) and any(
            not self.within(other, 0) for other in self._held if other != user
        )
