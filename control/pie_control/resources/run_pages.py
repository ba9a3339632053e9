"""The pages that a run fills: its guest's output pages, then ones that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import ApiError, invalid
from pie_control.resources.addresses import addresses_of
from pie_control.resources.pools import Defer, PagePool
from pie_control.resources.space import Space
from pie_py.wire.plan import Int32

# Carries out a call that takes one page, and returns what it returns; or returns None and hands the
# page, or an error, to the second function later.
Ask: TypeAlias = Callable[[Callable[[], int], Callable[[int | ApiError], None]], int | None]
Int64: TypeAlias = NDArray[np.int64]

# What is known of each page, a row each: its address; where it is; the pool's stamp; and how many
# of its slots were filled before the run.
ADDRESS, PAGE, STAMP, START_USED = range(4)


class RunPages:
    """The pages of one run, by address: their physical pages change if the server evicts them.

    The pages that the run fills are immutable meanwhile: nothing else can change what it writes,
    so that what it has written is known when it ends.
    """

    def __init__(
        self,
        space: Space,
        inputs: list[int],
        outputs: list[int],
        ask: Ask,
        reclaim: Callable[[int], bool],
        has_spare: Callable[[], bool],
    ) -> None:
        """Checks spans of the pages that the first step sees, and of those that are filled first;
        changes nothing. `ask` takes one more page, and `has_spare` tells whether one is free that
        nothing waits for.

        Raises:
            ApiError: `invalid-handle`, `swapped-out`, `invalid-argument`, `immutable`.
        """
        pool = space.page_pool
        seen = space.pages.find(inputs, pool.size)
        filled = space.pages.find(outputs, pool.size)
        is_open = pool.used[filled] < pool.page_size
        filled, addresses = filled[is_open], addresses_of(outputs)[is_open]
        own = set(filled.tolist())  # few, as a rule: `np.isin` takes five times as long
        is_filled = np.array([page in own for page in seen.tolist()], np.bool_)
        if len(own) < len(filled):
            raise invalid("a page that is written to is in the list more than once")
        _check_outputs(pool, filled, seen[is_filled])
        seen_only = (pool.used[seen] > 0) & ~is_filled
        pages = np.concatenate([seen[seen_only], filled])
        self.used: Int32 = pool.used[pages]  # filled slots of those that it began with
        self.first = int(np.count_nonzero(seen_only))  # of the pages that are filled
        self._given = self._count = len(pages)  # pages that the run has not taken itself, and all
        addresses = np.concatenate([addresses_of(inputs)[seen_only], addresses])
        self._facts: Int64 = np.array([addresses, pages, pool.stamps[pages], self.used], np.int64)
        self._space = space
        self._ask = ask
        self._reclaim = reclaim
        self._has_spare = has_spare
        self._moved = False

    @property
    def pages(self) -> Int32:
        """All pages, in the order in which they are seen."""
        return self._facts[PAGE, : self._count].astype(np.int32)

    @property
    def addresses(self) -> Int64:
        """The addresses of all pages, in the same order."""
        return self._facts[ADDRESS, : self._count]

    @property
    def masked(self) -> bool:
        """True if a slot of the pages is masked."""
        pool = self._space.page_pool
        return pool.masked > 0 and bool(pool.masks[self.pages].any())

    @property
    def written(self) -> Int32:
        """The pages that are filled."""
        return self.pages[self.first :]

    def begin(self) -> None:
        """The run is queued: nothing else may write to its pages from now on."""
        self._space.page_pool.immutable[self.written] = True

    def take(self, answered: Callable[[ApiError | None], None]) -> int | None:
        """Takes one more page; None if it comes later. `answered` is called then: with None, or an
        error if it can't be had.

        Raises:
            ApiError: `limit-exceeded`, `out-of-resources`.
        """

        def later(answer: int | ApiError) -> None:
            answered(answer if isinstance(answer, ApiError) else None)

        return self._ask(self._allocate, later)

    def take_spare(self) -> int | None:
        """Takes one more page if one is spare: without a wait, and from no instance; else None."""
        if not self._has_spare():
            return None
        try:
            return self._allocate()
        except ApiError:  # the instance has as many as it may have
            return None

    def _allocate(self) -> int:
        space, count = self._space, self._count
        address = space.allocate_pages(1, self._reclaim)
        page = space.pages.find_one(address)
        if count == self._facts.shape[1]:
            self._facts = np.pad(self._facts, ((0, 0), (0, count + 8)))
        pool = space.page_pool
        self._facts[:, count] = address, page, pool.stamps.item(page), 0
        self._count = count + 1
        pool.immutable[page] = True
        return page

    @property
    def counted(self) -> int:
        """Filled slots of the pages that are filled, as the pool has them."""
        return int(self._space.page_pool.used[self.written].sum())

    def show(self, used: Int32) -> None:
        """Notes in the pool how far the pages `[p]` are filled, so that it can move them."""
        self._space.page_pool.used[self.written] = used[self.first :]

    def find_again(self) -> None:
        """Finds the pages where they are, after the server has moved them.

        Raises:
            ApiError: `invalid-handle` if the guest has given one up.
        """
        entries = self._space.pages.look_up(self._facts[ADDRESS, : self._count])
        if (entries < 0).any():
            raise ApiError("invalid-handle", "a page of the run was freed or moved meanwhile")
        if not np.array_equal(entries, self.pages):
            self._moved = True
            self._facts[PAGE, : self._count] = entries
            self._space.page_pool.immutable[self.written] = True

    @property
    def untouched(self) -> bool:
        """True if they are where they began, and nothing but the run has changed them."""
        stamps = self._space.page_pool.stamps[self.pages]
        return not self._moved and bool((stamps == self._facts[STAMP, : self._count]).all())

    def end(self, tokens: int, defer: Defer) -> list[int]:
        """Ends the run: so many tokens of it stay in the pages, and the rest is empty again, once
        `defer` has called back. Returns spans of the pages that
        the run has taken and that hold tokens.
        """
        space, pool = self._space, self._space.page_pool
        start_used = self._facts[START_USED, self.first : self._count]
        room = pool.page_size - start_used
        before = np.cumsum(room) - room
        used = start_used + np.clip(tokens - before, 0, room)
        addresses = self._facts[ADDRESS, self.first : self._count]
        entries = space.pages.look_up(addresses)
        there = entries >= 0  # a guest may have given up pages of its own
        own = there.copy()
        own[there] = ~pool.shared(entries[there])  # one that was exported stays as it is
        pool.used[entries[own]] = used[own]
        pool.immutable[entries[own]] = False
        mine = np.arange(self.first, self._count) >= self._given
        spare = _spans(addresses[mine & (used == 0) & there])
        if spare:
            space.free_pages(spare, defer)
        return _spans(addresses[mine & (used > 0)])


def _check_outputs(pool: PagePool, filled: Int32, seen: Int32) -> None:
    """Refuses pages to fill that can't be filled; `seen` are those that the run sees as well."""
    if pool.immutable[filled].any():
        raise ApiError(
            "immutable", "an exported page cannot change; copy it to a page of your own first"
        )
    if pool.used[filled[1:]].any() or (
        len(filled) and pool.used[filled[0]] and not (seen == filled[0]).any()
    ):
        raise invalid(
            "only the first of a run's output pages that is not full may hold something, and it has"
            " to be an input page as well"
        )


def _spans(addresses: NDArray[np.int64]) -> list[int]:
    """Ascending addresses as spans, neighbours joined."""
    spans: list[int] = []
    for address in addresses.tolist():
        if spans and spans[-2] + spans[-1] == address:
            spans[-1] += 1
        else:
            spans += [address, 1]
    return spans
