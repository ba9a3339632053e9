"""Which sequences of a forward are decoded from windows, and which rows are read at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pie_inference.attention.decode_cache import DecodeWindow
from pie_inference.memory.kv_cache import KvCache

SMALLEST_ROOM = 64  # keys; each further room has twice as many
GAP_COST = 512  # keys of rows between that are read in vain, rather than begin another range

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of a window."""

    window: DecodeWindow
    rows: slice
    members: Int64  # [rows] sequence in each row; some other of the span where `real` is not set
    real: Bool  # [rows] whether the row is one of this forward's


class DecodeWindows:
    """A window for each size of sequences: what is read at once has at most twice the keys it needs."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._by_room: dict[int, DecodeWindow] = {}
        self.copied = 0  # places that each layer of the last forward copied, its inputs aside

    def open(
        self, members: Int64, lengths: Int64, slots: Callable[[Int64], Int64]
    ) -> dict[DecodeWindow, list[Span]]:
        """Begins a forward.

        Args:
            members: sequences of one input.
            lengths: keys of each, its input's included.
            slots: makes the slots `[n, keys]` of the keys of some members, padded.

        Returns:
            The rows of each window in use, ascending. Sequences that there is no room for are in none.
        """
        found: dict[DecodeWindow, list[Span]] = {}
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
                self._by_room[room] = DecodeWindow(self._cache, room)
            window = self._by_room[room]
            rows = window.open(slots(some), keys)
            self.copied += window.copied
            held = rows >= 0
            if held.any():
                found[window] = _spans(window, some[held], rows[held], int(keys.max()))
        return found


def _room(keys: int) -> int:
    return max(SMALLEST_ROOM, 1 << (keys - 1).bit_length())


def _spans(window: DecodeWindow, members: Int64, rows: Int64, keys: int) -> list[Span]:
    if rows.size > 1:
        order = rows.argsort()
        members, rows = members[order], rows[order]
    if int(rows[-1]) - int(rows[0]) == rows.size - 1:
        real = np.ones(rows.size, np.bool_)
        return [Span(window, slice(int(rows[0]), int(rows[-1]) + 1), members, real)]
    cuts = np.flatnonzero((np.diff(rows) - 1) * keys > GAP_COST) + 1
    found = []
    for part, own in zip(np.split(members, cuts), np.split(rows, cuts), strict=True):
        first, end = int(own[0]), int(own[-1]) + 1
        every = np.full(end - first, part[0])
        every[own - first] = part
        real = np.zeros(end - first, np.bool_)
        real[own - first] = True
        found.append(Span(window, slice(first, end), every, real))
    return found
