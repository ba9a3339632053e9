"""The virtual addresses of one instance: from spans of handles to physical ids."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pie_control.errors import ApiError
from pie_control.resources.pools import EmbedPool, PagePool
from pie_control.resources.samplers import Samplers
from pie_py.wire.plan import Int32

MAX_WINDOW = 1 << 22  # addresses between the oldest live one and the newest
MAX_ADDRESS = (1 << 32) - 1
NOTHING: Int32 = np.empty(0, np.int32)

_FREED = -1


class Addresses:
    """A table from addresses to physical ids. Addresses grow and are never used twice.

    The table covers a window that starts at the oldest live address or before it, so its size does not
    grow with the age of an instance that frees what it allocates.
    """

    def __init__(self, what: str) -> None:
        self._what = what  # "page" or "embed", for messages
        self._table: Int32 = np.empty(64, np.int32)
        self._base = 1  # the address of the table's first entry
        self._length = 0  # entries in use
        self.live = 0  # addresses that are valid

    def map(self, physical: Int32) -> int:
        """Gives ids `[n]` the next `n` addresses and returns the first.

        Raises:
            ApiError: `limit-exceeded` if live addresses would lie too far apart.
        """
        count = len(physical)
        if self._length + count > len(self._table):
            self._make_room(count)
        first = self._base + self._length
        self._table[self._length : self._length + count] = physical
        self._length += count
        self.live += count
        return first

    def find(self, spans: list[int], most: int) -> Int32:
        """The physical ids `[n]` behind spans, in order; the caller owns the array.

        Args:
            spans: `[start, count, start, count, ...]`.
            most: the largest `n` that makes sense, which bounds what a call can cost.

        Raises:
            ApiError: `invalid-handle`, or `invalid-argument` if there are more than `most`.
        """
        if len(spans) == 2:
            first, count = spans
            if count > most:
                raise self._too_many(count, most)
            return self._range(first, count).copy()
        if not spans:
            return NOTHING
        if len(spans) % 2:
            raise ApiError(
                "invalid-handle",
                f"spans are pairs of start and count, and {len(spans)} numbers are no pairs",
            )
        total = sum(spans[1::2])
        if total > most or len(spans) > 2 * most:
            raise self._too_many(max(total, len(spans) // 2), most)
        parts = [
            self._range(first, count) for first, count in zip(spans[::2], spans[1::2], strict=True)
        ]
        return np.concatenate(parts)

    def find_list(self, spans: list[int], most: int) -> list[int]:
        """As `find`, as a list of Python numbers: for a handful, arrays cost more than they save."""
        if len(spans) == 2 and spans[1] == 1:
            return [self.find_one(spans[0])]
        numbers: list[int] = self.find(spans, most).tolist()
        return numbers

    def find_one(self, address: int) -> int:
        """The physical id behind one address.

        Raises:
            ApiError: `invalid-handle`.
        """
        index = address - self._base
        if 0 <= index < self._length:
            physical = self._table.item(index)
            if physical != _FREED:
                return int(physical)
        raise self._unknown(address)

    def unmap(self, spans: list[int]) -> Int32:
        """Ends addresses and returns their ids `[n]`.

        Raises:
            ApiError: `invalid-handle`; nothing has changed then.
        """
        physical = self.find(spans, MAX_WINDOW)
        if len(spans) > 2:
            self._check_apart(spans)
        for first, count in zip(spans[::2], spans[1::2], strict=True):
            index = first - self._base
            self._table[index : index + count] = _FREED
        self.live -= len(physical)
        return physical

    def unmap_all(self) -> Int32:
        """Ends every address and returns their ids."""
        table = self._table[: self._length]
        physical: Int32 = table[table != _FREED]
        self._base += self._length
        self._length = 0
        self.live = 0
        return physical

    def _range(self, first: int, count: int) -> Int32:
        index = first - self._base
        if index < 0 or index + count > self._length:
            raise self._unknown(first if index < 0 else max(first, self._base + self._length))
        part: Int32 = self._table[index : index + count]
        if self.live != self._length and count and part.min() == _FREED:
            raise self._unknown(first + int(np.argmax(part == _FREED)))
        return part

    def _make_room(self, count: int) -> None:
        """Drops freed entries from the window's front; doubles the table if that is not enough."""
        table = self._table[: self._length]
        lead = int(np.argmax(table != _FREED)) if self.live else self._length
        needed = self._length - lead + count
        if needed > MAX_WINDOW or self._base + self._length + count > MAX_ADDRESS:
            raise ApiError(
                "limit-exceeded",
                f"the live {self._what}s lie over {MAX_WINDOW} addresses apart;"
                f" free the {self._what}s allocated first",
            )
        size = len(self._table)
        while size < 2 * needed:
            size *= 2
        grown = np.empty(size, np.int32)
        grown[: self._length - lead] = table[lead:]
        self._table = grown
        self._base += lead
        self._length -= lead

    def _check_apart(self, spans: list[int]) -> None:
        end = 0
        for first, count in sorted(zip(spans[::2], spans[1::2], strict=True)):
            if count and first < end:
                raise ApiError(
                    "invalid-handle", f"{self._what} {first} is in the list more than once"
                )
            end = max(end, first + count)

    def _unknown(self, address: int) -> ApiError:
        return ApiError(
            "invalid-handle", f"{address} is no {self._what} of this instance (freed already?)"
        )

    def _too_many(self, count: int, most: int) -> ApiError:
        return ApiError("invalid-argument", f"{count} {self._what}s in one list; {most} at most")


class Space:
    """The pages, embeds and samplers that one instance holds of one model."""

    def __init__(
        self,
        page_pool: PagePool,
        embed_pool: EmbedPool,
        max_pages: int | None,
        max_embeds: int | None,
        samplers: Samplers,
    ) -> None:
        self.page_pool = page_pool
        self.embed_pool = embed_pool
        self.samplers = samplers
        self.pages = Addresses("page")
        self.embeds = Addresses("embed")
        self._max_pages = max_pages
        self._max_embeds = max_embeds
        self._pages_leaving = 0  # freed by the instance, but named by commands that are not sent
        self._embeds_leaving = 0

    @property
    def pages_held(self) -> int:
        """Pages that come back, unless others hold them too, when the instance ends."""
        return self.pages.live + self._pages_leaving

    @property
    def embeds_held(self) -> int:
        """Embeds that come back when the instance ends."""
        return self.embeds.live + self._embeds_leaving

    def allocate_pages(self, count: int, reclaim: Callable[[int], bool]) -> int:
        """Allocates empty pages and returns the first address.

        Args:
            count: how many.
            reclaim: frees what others hold until this many are free, and tells whether they are.

        Raises:
            ApiError: `invalid-argument`, `limit-exceeded`, `out-of-resources`.
        """
        pool = self.page_pool
        self.check_page_limit(count)
        _ensure(pool, "page", count, reclaim)
        pages = pool.allocate(count)
        try:
            return self.pages.map(pages)
        except ApiError:
            pool.release(pages)
            raise

    def allocate_embeds(self, count: int, reclaim: Callable[[int], bool]) -> int:
        """Allocates embeds and returns the first address. As `allocate_pages`."""
        pool = self.embed_pool
        _check_limit(self.embeds, "embed", count, self._max_embeds)
        _ensure(pool, "embed", count, reclaim)
        embeds = pool.allocate(count)
        try:
            return self.embeds.map(embeds)
        except ApiError:
            pool.release(embeds)
            raise

    def free_pages(self, spans: list[int], defer: Callable[[Callable[[], None]], None]) -> None:
        """Ends the addresses at once; the pages come back when `defer` calls back.

        Raises:
            ApiError: `invalid-handle`.
        """
        pages = self.pages.unmap(spans)

        def release() -> None:
            self._pages_leaving -= len(pages)
            self.page_pool.release(pages)

        if len(pages):
            self._pages_leaving += len(pages)
            defer(release)

    def free_embeds(self, spans: list[int], defer: Callable[[Callable[[], None]], None]) -> None:
        """Ends the addresses at once; the embeds come back when `defer` calls back. As `free_pages`."""
        embeds = self.embeds.unmap(spans)

        def release() -> None:
            self._embeds_leaving -= len(embeds)
            self.embed_pool.release(embeds)

        if len(embeds):
            self._embeds_leaving += len(embeds)
            defer(release)

    def check_page_limit(self, count: int) -> None:
        """Refuses to hold `count` more pages than the instance may.

        Raises:
            ApiError: `limit-exceeded`.
        """
        _check_limit(self.pages, "page", count, self._max_pages)

    def import_pages(self, pages: Int32) -> int:
        """Maps pages that somebody else holds too, and returns the first address.

        Raises:
            ApiError: `limit-exceeded`.
        """
        self.check_page_limit(len(pages))
        first = self.pages.map(pages)
        self.page_pool.retain(pages)
        return first

    def close(self) -> None:
        """Gives everything back. Idempotent."""
        self.page_pool.release(self.pages.unmap_all())
        self.embed_pool.release(self.embeds.unmap_all())
        self.samplers.close()


def _check_limit(held: Addresses, what: str, count: int, limit: int | None) -> None:
    if limit is not None and held.live + count > limit:
        raise ApiError(
            "limit-exceeded",
            f"{held.live} {what}s held and {count} more asked for; an instance may hold {limit}",
        )


def _ensure(
    pool: PagePool | EmbedPool,
    what: str,
    count: int,
    reclaim: Callable[[int], bool],
) -> None:
    if count == 0:
        raise ApiError("invalid-argument", f"0 {what}s asked for; ask for at least one")
    if count > pool.size:
        raise ApiError(
            "out-of-resources", f"{count} {what}s asked for, and the model has {pool.size} in all"
        )
    if count > pool.free and not reclaim(count):
        raise ApiError(
            "out-of-resources",
            f"{count} {what}s asked for, {pool.free} of {pool.size} are free, and the others belong"
            " to instances launched earlier; free some or try again later",
        )
