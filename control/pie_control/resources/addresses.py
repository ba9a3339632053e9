"""Virtual addresses: from spans of handles to physical ids."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import ApiError, exceeded, invalid
from pie_py.wire.plan import Int32

MAX_WINDOW = 1 << 22  # addresses between the oldest live one and the newest
MAX_ADDRESS = (1 << 32) - 1
NOTHING: Int32 = np.empty(0, np.int32)

# An entry of the table is a physical id, or one of these.
_FREED = -1  # the address has ended
EMPTY = -2  # valid, with nothing behind it: the content was given up, or there was none
_ON_HOST = -3  # valid, and the content is in host memory: `_ON_HOST` less the host page


def is_on_host(entries: Int32) -> NDArray[np.bool_]:
    """Which entries `[n]` of `find_entries` stand for pages in host memory."""
    return entries <= _ON_HOST


def host_pages_of(entries: Int32) -> Int32:
    """Host pages `[n]` of entries `[n]` that stand for pages in host memory."""
    return _ON_HOST - entries


def entries_of(host_pages: Int32) -> Int32:
    """Entries `[n]` that stand for host pages `[n]`."""
    return _ON_HOST - host_pages


def addresses_of(spans: list[int]) -> NDArray[np.int64]:
    """The addresses `[n]` of spans, in order."""
    parts = [
        np.arange(first, first + count, dtype=np.int64)
        for first, count in zip(spans[::2], spans[1::2], strict=True)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


class Addresses:
    """A table from addresses to physical ids. Addresses grow and are never used twice.

    An address may be *away*: it is valid, but nothing in the pool is behind it for the time being.

    The table covers a window that starts at the oldest live address or before it, so its size does
    not grow with the age of an instance that frees what it allocates.
    """

    def __init__(self, what: str, clock: Callable[[], float] | None = None) -> None:
        """Takes "page" or "embed", for messages, and a clock if it is to count `seconds`."""
        self._what = what
        self._clock = clock
        self._seconds = self._counted = 0.0
        self._table: Int32 = np.empty(64, np.int32)
        self._base = 1  # the address of the table's first entry
        self._length = 0  # entries in use
        self.live = 0  # addresses that are valid
        self.most = 0  # addresses that were valid at once
        self.away = 0  # of these, addresses with nothing in the pool

    @property
    def resident(self) -> int:
        """Addresses with something in the pool behind them."""
        return self.live - self.away

    @property
    def seconds(self) -> float:
        """For how long addresses were resident, all together."""
        self._count()
        return self._seconds

    def _count(self) -> None:
        """Comes before each change of what is resident."""
        if self._clock is not None:
            now = self._clock()
            self._seconds += self.resident * (now - self._counted)
            self._counted = now

    def map(self, physical: Int32) -> int:
        """Gives ids `[n]` the next `n` addresses and returns the first.

        Raises:
            ApiError: `limit-exceeded` if live addresses would lie too far apart.
        """
        self._count()
        count = len(physical)
        if self._length + count > len(self._table):
            self._make_room(count)
        first = self._base + self._length
        self._table[self._length : self._length + count] = physical
        self._length += count
        self.live += count
        self.most = max(self.most, self.live)
        return first

    def find(self, spans: list[int], most: int) -> Int32:
        """The physical ids `[n]` behind spans `[start, count, start, count, ...]`, in order; the
        caller owns the array. `most` is the largest `n` that makes sense, which bounds what a call
        can cost.

        Raises:
            ApiError: `invalid-handle`, or `invalid-argument` if there are more than `most`.
        """
        if len(spans) == 2:  # the hot path; what is wrong with a span is found below
            first, count = spans
            index = first - self._base
            if index >= 0 and count <= most and index + count <= self._length:
                part: Int32 = self._table[index : index + count]
                whole = self.live == self._length and not self.away
                if whole or not count or part.min() >= 0:
                    return part.copy()
        return self._gather(spans, most, self._range)

    def find_entries(self, spans: list[int], most: int) -> Int32:
        """As `find`, but of addresses that may be away: those have negative entries."""
        return self._gather(spans, most, self._entries)

    def find_apart(self, spans: list[int], most: int) -> Int32:
        """As `find_entries`, but no address may be in the list twice.

        Raises:
            ApiError: `invalid-handle`, `invalid-argument`.
        """
        entries = self.find_entries(spans, most)
        self._check_apart(spans)
        return entries

    def all_resident(self) -> tuple[NDArray[np.int64], Int32]:
        """Resident addresses `[n]`, ascending, and their pool ids `[n]`."""
        table = self._table[: self._length]
        at = np.flatnonzero(table >= 0)
        return at + self._base, table[at]

    def entries_at(self, addresses: NDArray[np.int64]) -> Int32:
        """Entries `[n]` of valid addresses, as `find_entries`."""
        entries: Int32 = self._table[addresses - self._base]
        return entries

    def look_up(self, addresses: NDArray[np.int64]) -> Int32:
        """Entries `[n]` of addresses; negative ones too for those that have ended meanwhile."""
        at = addresses - self._base
        known = (at >= 0) & (at < self._length)
        entries: Int32 = np.full(len(at), _FREED, np.int32)
        entries[known] = self._table[at[known]]
        return entries

    def set_entries(self, addresses: NDArray[np.int64], entries: Int32) -> None:
        """Sets what is behind distinct valid addresses."""
        self._count()
        at = addresses - self._base
        self.away += int(np.count_nonzero(entries < 0)) - int(np.count_nonzero(self._table[at] < 0))
        self._table[at] = entries

    def _gather(self, spans: list[int], most: int, find: Callable[[int, int], Int32]) -> Int32:
        if len(spans) == 2:
            first, count = spans
            if count > most:
                raise self._too_many(count, most)
            return find(first, count).copy()
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
        return np.concatenate(
            [find(first, count) for first, count in zip(spans[::2], spans[1::2], strict=True)]
        )

    def find_list(self, spans: list[int], most: int) -> list[int]:
        """As `find`, as a list of Python numbers: for a handful, arrays cost more."""
        if len(spans) == 2 and spans[1] == 1:
            return [self.find_one(spans[0])]
        numbers: list[int] = self.find(spans, most).tolist()
        return numbers

    def find_one(self, address: int) -> int:
        """The physical id behind one address. Raises ApiError `invalid-handle`."""
        index = address - self._base
        if 0 <= index < self._length:
            physical = self._table.item(index)
            if physical >= 0:
                return int(physical)
            if physical != _FREED:
                raise self._is_away(address)
        raise self._unknown(address)

    def unmap(self, spans: list[int]) -> Int32:
        """Ends addresses and returns their entries `[n]`: ids, or negative ones if they are away.

        Raises:
            ApiError: `invalid-handle`; nothing has changed then.
        """
        entries = self.find_apart(spans, MAX_WINDOW)
        self._count()
        for first, count in zip(spans[::2], spans[1::2], strict=True):
            index = first - self._base
            self._table[index : index + count] = _FREED
        self.live -= len(entries)
        if self.away:
            self.away -= int(np.count_nonzero(entries < 0))
        return entries

    def unmap_all(self) -> Int32:
        """Ends every address and returns their entries, as `unmap`."""
        self._count()
        table = self._table[: self._length]
        physical: Int32 = table[table != _FREED]
        self._base += self._length
        self._length = 0
        self.live = self.away = 0
        return physical

    def _range(self, first: int, count: int) -> Int32:
        """Ids behind consecutive addresses, a view of the table."""
        part = self._entries(first, count)
        if self.away and count and part.min() < 0:
            raise self._is_away(first + int(np.argmax(part < 0)))
        return part

    def _entries(self, first: int, count: int) -> Int32:
        """Entries of consecutive addresses, a view of the table."""
        index = first - self._base
        if index < 0 or index + count > self._length:
            raise self._unknown(first if index < 0 else max(first, self._base + self._length))
        part: Int32 = self._table[index : index + count]
        if self.live != self._length and count and (part == _FREED).any():
            raise self._unknown(first + int(np.argmax(part == _FREED)))
        return part

    def _make_room(self, count: int) -> None:
        """Drops freed entries from the window's front; doubles the table if that is not enough."""
        table = self._table[: self._length]
        lead = int(np.argmax(table != _FREED)) if self.live else self._length
        needed = self._length - lead + count
        if needed > MAX_WINDOW or self._base + self._length + count > MAX_ADDRESS:
            raise exceeded(
                f"the live {self._what}s lie over {MAX_WINDOW} addresses apart; free the"
                f" {self._what}s allocated first"
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
        if len(spans) <= 2:
            return
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

    def _is_away(self, address: int) -> ApiError:
        return ApiError(
            "swapped-out",
            f"{self._what} {address} was swapped out or discarded; swap it in before it is used",
        )

    def _too_many(self, count: int, most: int) -> ApiError:
        return invalid(f"{count} {self._what}s in one list; {most} at most")
