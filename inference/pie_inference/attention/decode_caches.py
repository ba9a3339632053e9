"""The sequences of a forward by decode cache, and the rows that are read at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pie_inference.attention.decode_cache import DecodeCache
from pie_inference.memory.kv_cache import KvCache

SMALLEST_ROOM = 64  # keys; each further room has twice as many
GAP_COST = 512  # unused keys that are cheaper to read than another range

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of a decode cache, which one call of a kernel reads."""

    cache: DecodeCache
    rows: slice
    members: Int64  # [rows] sequence in each row; any of the span's where `real` is not set
    real: Bool  # [rows] whether the row belongs to a sequence of this forward


class DecodeCaches:
    """Decode caches by size: a sequence is in one whose rows have at most twice the keys it needs.

    Rows of one cache are all as long as the longest, so with a single cache a short sequence would
    be read as if it were long.
    """

    def __init__(self, pool: KvCache) -> None:
        self._pool = pool
        self._by_room: dict[int, DecodeCache] = {}
        self.copied = 0  # places that each layer of the last forward copied, its inputs aside

    def open(
        self, members: Int64, lengths: Int64, slots: Callable[[Int64], Int64]
    ) -> dict[DecodeCache, list[Span]]:
        """Begins a forward.

        Args:
            members: sequences of one input.
            lengths: keys of each, its input's included.
            slots: makes the slots `[n, keys]` of the keys of some members, padded.

        Returns:
            The rows in use of each cache, ascending. Sequences for which there is no room are in
            none.
        """
        found: dict[DecodeCache, list[Span]] = {}
        self.copied = 0
        first, last = _room(int(lengths.min())), _room(int(lengths.max()))
        for room in (first << i for i in range(last.bit_length() - first.bit_length() + 1)):
            here: slice | Bool = slice(None)
            if first != last:
                here = (lengths <= room) & ((lengths > room // 2) | (room == SMALLEST_ROOM))
            some, keys = members[here], lengths[here]
            if not some.size:
                continue
            if room not in self._by_room:
                self._by_room[room] = DecodeCache(self._pool, room)
            cache = self._by_room[room]
            rows = cache.open(slots(some), keys)
            self.copied += cache.copied
            held = rows >= 0
            if held.any():
                found[cache] = _spans(cache, some[held], rows[held], int(keys.max()))
        return found


def _room(keys: int) -> int:
    """Keys of a row that so many fit in: a power of two."""
    return max(SMALLEST_ROOM, 1 << (keys - 1).bit_length())


def _spans(cache: DecodeCache, members: Int64, rows: Int64, keys: int) -> list[Span]:
    """Ranges of rows that are read at once.

    Sequences that have ended leave gaps. A small gap is read and masked, which costs less than
    another call; a large one splits the range.
    """
    if rows.size > 1:
        order = rows.argsort()
        members, rows = members[order], rows[order]
    if int(rows[-1]) - int(rows[0]) == rows.size - 1:
        real = np.ones(rows.size, np.bool_)
        return [Span(cache, slice(int(rows[0]), int(rows[-1]) + 1), members, real)]
    cuts = np.flatnonzero((np.diff(rows) - 1) * keys > GAP_COST) + 1
    found = []
    for part, own in zip(np.split(members, cuts), np.split(rows, cuts), strict=True):
        first, end = int(own[0]), int(own[-1]) + 1
        every = np.full(end - first, part[0])
        every[own - first] = part
        real = np.zeros(end - first, np.bool_)
        real[own - first] = True
        found.append(Span(cache, slice(first, end), every, real))
    return found
