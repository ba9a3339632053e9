"""The KV pages of a sequence: allocated, shared with forks, copied on write, given back.

Commands name pages as spans of addresses, `[start, count, start, count, ...]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferlet import raw
from inferlet.errors import PieError
from inferlet.model import Model


class Pages:
    """A sequence's pages, in order.

    Full pages never change, so forks, the prefix cache and saved contexts share them. A page that
    others may read is replaced by a copy before it is written (copy-on-write).

    Attributes:
        size: tokens that fit into a page.
        addresses: of the pages, in order. The last ones may be empty: allocated ahead.
        read_only: how many of the first pages must be copied before they are written.
        expected: pages that the generation under way may need in all.
    """

    def __init__(self, model: Model, queue: int) -> None:
        self.size = model.page_size
        self.addresses: list[int] = []
        self.read_only = 0
        self.expected = 0
        self._queue = queue
        self._frozen = model.frozen_pages
        self._shared = model.shared_pages
        self._own: set[int] = set()  # pages among the read-only ones that are copies of this one's
        self._spans: tuple[int, list[int]] = (0, [])  # page count, spans of these

    def grow(self, need: int) -> None:
        """Allocates pages up to `need`, and some of those that the generation will need anyway.
        Raises PieError: `out-of-resources`.
        """
        have = len(self.addresses)
        # One host call allocates several pages: an eighth more than there are, so that a generation
        # that ends early holds few unused ones.
        count = max(need, min(self.expected, need + have // 8)) - have
        start = raw.alloc_kvpage(self._queue, count)
        self.addresses += range(start, start + count)

    def inputs(self, filled: int) -> list[int]:
        """Spans of the first `filled` pages. The caller must not change the list."""
        # Reused from one token to the next: the list changes once a page.
        known, found = self._spans
        if known != filled:
            if filled < known:
                known, found = 0, []
            extend(found, self.addresses[known:filled])
            self._spans = (filled, found)
        return found

    def freeze(self, count: int) -> None:
        """Notes that the first pages never change again: they are exported, or in a cache."""
        self.read_only = max(self.read_only, count)
        self._own.clear()
        # Forks that hold these pages did not see it happen.
        self._frozen.update(page for page in self.addresses[:count] if page in self._shared)

    def copy_on_write(self, length: int) -> None:
        """Makes the pages after the full ones of `length` tokens writable. Raises PieError:
        `out-of-resources`; then nothing has changed.
        """
        full, used = divmod(length, self.size)
        old = self.addresses[full:]
        if used:
            new = raw.alloc_kvpage(self._queue, 1)
            try:
                raw.copy_kvpage(self._queue, old[0], 0, new, 0, used)
            except PieError:
                raw.dealloc_kvpage(self._queue, [new, 1])
                raise
            self.addresses[full:] = [new]
        else:
            # These are empty, but a fork that holds them too may write to them.
            del self.addresses[full:]
        self._give_back(old)
        self._spans = (0, [])
        self.read_only = full

    def truncate(self, length: int, keep: int | None = None) -> None:
        """Empties all slots after `length` tokens.

        Args:
            length: tokens that stay.
            keep: how many pages stay; by default those that hold a token.
        """
        first, used = divmod(length, self.size)
        if keep is None:
            keep = first + (used > 0)
        if first < min(keep, len(self.addresses)):
            page = self.addresses[first]
            if first < self.read_only or page in self._shared or page in self._frozen:
                # Others still read the slots that are cut off here.
                self.read_only = max(self.read_only, first + 1)
            else:
                raw.truncate_kvpage(self._queue, [page, 1], [used])
        if len(self.addresses) > keep:
            cut = self.addresses[keep:]
            del self.addresses[keep:]
            self._give_back(cut)
            self._spans = (0, [])
            self.read_only = min(self.read_only, keep)

    def append(self, addresses: list[int], used: list[int], length: int) -> None:
        """Takes over read-only pages behind the first `length` slots.

        As they are where a page begins there; else their slots are copied, which leaves no gap.

        Args:
            addresses: of the pages, each of which holds a token.
            used: filled slots of each.
            length: slots that are filled so far.

        Raises:
            PieError: `out-of-resources`.
        """
        for page, count in zip(addresses, used, strict=True):
            if length % self.size == 0:
                self.addresses.append(page)
                self.read_only = len(self.addresses)
            else:
                self._copy_in(page, count, length)
                self._give_back([page])
            length += count
        self._spans = (0, [])

    def _copy_in(self, page: int, count: int, length: int) -> None:
        """Copies the first `count` slots of a page behind the first `length` ones."""
        if length // self.size < self.read_only:
            self.copy_on_write(length)
        done = 0
        while done < count:
            index, slot = divmod(length + done, self.size)
            if index == len(self.addresses):
                self.grow(index + 1)
            part = min(count - done, self.size - slot)
            raw.copy_kvpage(self._queue, page, done, self.addresses[index], slot, part)
            done += part

    def remove(self, first: int, last: int) -> None:
        """Gives the pages from `first` up to `last` back; what follows moves up."""
        cut = self.addresses[first:last]
        del self.addresses[first:last]
        self.read_only -= max(0, min(last, self.read_only) - first)
        self._spans = (0, [])
        self._give_back(cut)

    def make_writable(self, index: int, used: int) -> int:
        """The address of a page that only this sequence holds: a copy where others read it.

        Args:
            index: of the page, among the sequence's.
            used: its filled slots.

        Raises:
            PieError: `out-of-resources`.
        """
        page = self.addresses[index]
        shared = page in self._shared or page in self._frozen
        if shared or (index < self.read_only and page not in self._own):
            copy = raw.alloc_kvpage(self._queue, 1)
            raw.copy_kvpage(self._queue, page, 0, copy, 0, used)
            self._give_back([page])
            self.addresses[index] = copy
            self._own.add(copy)
            self._spans = (0, [])
        return self.addresses[index]

    def share_with(self, other: Pages) -> None:
        """Gives a fork, which has none, the same pages. Both copy what they write to."""
        share(self._shared, self.addresses)
        other.addresses = self.addresses[:]
        self.read_only = other.read_only = len(self.addresses)
        self._own.clear()

    def unshared(self) -> list[int]:
        """The pages that no other context of this inferlet holds."""
        return [page for page in self.addresses if page not in self._shared]

    def release(self) -> None:
        """Gives all pages back."""
        pages, self.addresses = self.addresses, []
        self._give_back(pages)

    def _give_back(self, pages: list[int]) -> None:
        free = drop(self._shared, pages)
        if free:
            self._frozen.difference_update(free)
            raw.dealloc_kvpage(self._queue, spans(free))


def spans(addresses: Sequence[int]) -> list[int]:
    """Addresses in order as `[start, count, start, count, ...]`."""
    if not addresses:
        return []
    if len(addresses) == 1:
        return [addresses[0], 1]
    out: list[int] = []
    extend(out, addresses)
    return out


def extend(spans: list[int], more: Sequence[int]) -> None:
    """Appends addresses to spans."""
    for address in more:
        if spans and spans[-2] + spans[-1] == address:
            spans[-1] += 1
        else:
            spans += (address, 1)


def addresses(spans: Sequence[int]) -> list[int]:
    """The addresses that spans stand for, in order."""
    return [
        address
        for start, count in zip(spans[::2], spans[1::2], strict=True)
        for address in range(start, start + count)
    ]


def share(counts: dict[int, int], pages: Sequence[int]) -> None:
    """Notes one more holder of each page. A page that is not in `counts` has one holder."""
    for page in pages:
        counts[page] = counts.get(page, 1) + 1


def drop(counts: dict[int, int], pages: Sequence[int]) -> list[int]:
    """Notes one holder fewer of each page, and returns the pages that have no holder left."""
    free = []
    for page in pages:
        count = counts.get(page, 1)
        if count == 1:
            free.append(page)
        elif count == 2:
            del counts[page]
        else:
            counts[page] = count - 1
    return free
