"""Keys and values of sequences that decode, kept side by side from one forward to the next.

PyTorch's attention wants the keys of a sequence side by side, and the pool has them in scattered
pages. Without a decode cache every layer of every step would gather the whole context of every
sequence. With it a step copies one token per sequence: the one that it also stores in the pool.

The pool stays the truth. A decode cache is only ever a copy, and finds out by itself what of it is
stale, so the code that frees, copies, masks and swaps pages does not know that there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from pie_inference.device import Bool, Int32, Int64, upload, zeros
from pie_inference.memory.kv_cache import KvCache

MAX_BYTES = 512 << 20  # of one decode cache, all layers
AHEAD = 64  # keys: so many columns beyond the longest sequence are made ready at once
FEWEST_ROWS = 8  # that a decode cache begins with
IDLE = 8  # forwards without its sequence after which a row is free; fresh memory is slow to map
NEVER = -IDLE - 1
UNUSED = 256  # forwards without any of its sequences after which a cache's memory is given back
SMALLEST_ROOM = 64  # keys; each further room has twice as many
GAP_COST = 512  # unused keys that are cheaper to read than another range


class DecodeCache:
    """A copy of some slots of the pool, `[layers, rows, room, width]`: a row per sequence.

    Forwards do not name sequences, so a sequence is recognized by its last key: it has the row in
    which the token before its input was stored, in whatever order and with whatever others it is
    decoded. For every column of a row it records which slot is copied there, and for every row when
    that was. A column is copied again if the sequence has another slot there now, or if the slot
    was written since. A sequence that comes for the first time is copied as a whole.
    """

    def __init__(self, cache: KvCache, room: int) -> None:
        """Makes a decode cache without rows, for sequences of up to `room` keys."""
        self.room = room
        self._cache = cache
        self._most = MAX_BYTES // (room * cache.data[:, 0].numel() * cache.data.itemsize)
        self._layers = [layer[:0] for layer in cache.rows]  # [rows * room, width]
        self._slots: Int64 = np.empty((0, room), np.int64)  # [rows, room] slot that is copied there
        self._lengths: Int64 = np.empty(0, np.int64)  # [rows] keys of the sequence
        self._ready: Int64 = np.empty(0, np.int64)  # [rows] columns that are kept up to date
        self._made: Int64 = np.empty(0, np.int64)  # [rows] the pool's clock then, -1 if unfinished
        self._wanted: Int64 = np.empty(0, np.int64)  # [rows] the last forward of its sequence
        self._forwards = 0
        self._columns = np.arange(room)
        # The row, plus one, in which a slot was stored last. Zeros take no memory until a page of
        # them is written to.
        self._row_of: Int32 = np.zeros(cache.written.size, np.int32)
        self._now = self._lengths  # rows of this forward
        self._clock = 0
        self._stale: torch.Tensor | None = (
            None  # places `row * room + column` to copy in every layer
        )
        self._sources = torch.empty(0, dtype=torch.int64)  # their slots
        self._own = self._sources  # places of this forward's inputs, ascending

    @property
    def copied(self) -> int:
        """Places that each layer of this forward copies from the pool."""
        return 0 if self._stale is None else int(self._stale.numel())

    def open(self, slots: Int64, lengths: Int64) -> Int64:
        """Begins a forward.

        Args:
            slots: `[batch, keys]` of each sequence's keys, its input's last; then anything.
            lengths: `[batch]` keys of each sequence, at most `room`.

        Returns:
            The row of each sequence, `[batch]`; -1 for one that there is no room for.
        """
        self._forwards += 1
        rows = self._find(slots, lengths)
        self._move_one_down(rows)
        held = rows >= 0
        if held.all():
            self._plan(slots, lengths, rows)
        else:
            self._plan(slots[held], lengths[held], rows[held])
        return rows

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        """Brings a layer up to date, after the pool, with inputs `[n, width]` in rows' order."""
        data = self._layers[layer]
        if self._stale is not None:
            data.index_copy_(0, self._stale, self._cache.rows[layer].index_select(0, self._sources))
        data.index_copy_(0, self._own, keys_values)
        if layer == len(self._layers) - 1:
            self._made[self._now] = self._clock

    def read(self, layer: int, rows: slice, keys: int) -> torch.Tensor:
        """The keys and values of the pool, `[rows, keys, width]`, after `store` of the layer."""
        data = self._layers[layer]
        found: torch.Tensor = data.view(-1, self.room, data.shape[-1])[rows, :keys]
        return found

    def _find(self, slots: Int64, lengths: Int64) -> Int64:
        """The rows of sequences; each new one gets one, if there is any."""
        before = np.maximum(lengths - 2, 0)
        ends = slots[np.arange(lengths.size), before]
        rows = self._row_of[ends].astype(np.int64) - 1
        some = np.flatnonzero(rows >= 0)
        some = some[self._slots[rows[some], before[some]] == ends[some]]
        # Sequences that were forked have the same key before their inputs: one of them keeps the
        # row.
        if np.bincount(rows[some]).max(initial=0) > 1:
            some = some[np.unique(rows[some], return_index=True)[1]]
        found = np.full(lengths.size, -1)
        found[some] = rows[some]
        self._wanted[found[some]] = self._forwards
        if some.size < lengths.size:
            self._make_room(lengths.size - some.size)
            for i in np.flatnonzero(found < 0).tolist():
                found[i] = self._row_for(slots[i], int(lengths[i]))
                if found[i] >= 0:
                    self._wanted[found[i]] = self._forwards
        return found

    def _make_room(self, count: int) -> None:
        """Adds rows for so many sequences at once: each growth maps memory and copies all rows."""
        held = self._lengths.size
        lacking = count - int(np.count_nonzero(self._wanted < self._forwards - IDLE))
        wanted = min(self._most, max(FEWEST_ROWS, 2 * held, held + lacking))
        if lacking > 0 and wanted > held:
            self._grow(wanted)

    def _row_for(self, slots: Int64, length: int) -> int:
        """A row for a sequence that did not decode in one just now."""
        others = np.flatnonzero(self._wanted < self._forwards)
        ends = self._lengths[others] - 1
        ahead = (ends >= 0) & (ends < length - 1)
        others, ends = others[ahead], ends[ahead]
        own = self._slots[others, ends] == slots[ends]
        if own.any():  # its row of some steps ago: it has been decoded elsewhere since
            return int(others[own][ends[own].argmax()])
        free = np.flatnonzero(self._wanted < self._forwards - IDLE)
        if free.size:
            return int(free[0])
        if not self._wanted.size:
            return -1
        oldest = int(self._wanted.argmin())
        return oldest if self._wanted[oldest] < self._forwards else -1

    def _move_one_down(self, rows: Int64) -> None:
        """Closes one gap of ended sequences per forward, so that rows can be read as a range."""
        free = np.flatnonzero(self._wanted < self._forwards - IDLE)
        last = int(rows.argmax())
        if free.size and free[0] < rows[last]:
            self._wanted[rows[last]], self._lengths[rows[last]] = NEVER, 0
            rows[last] = free[0]
            self._wanted[free[0]] = self._forwards

    def _plan(self, slots: Int64, lengths: Int64, rows: Int64) -> None:
        """Notes which places are to be copied, and which ones the inputs go to."""
        each = np.arange(rows.size)
        # Columns beyond a sequence's end are read, too, and masked. They hold its own first key:
        # what another sequence left there could be no number, which a mask does not hide.
        read = min(self.room, -(-int(lengths.max()) // AHEAD) * AHEAD)
        wanted = np.repeat(slots[:, :1], read, axis=1)
        keys = min(read, slots.shape[1])
        real = self._columns[:keys] < lengths[:, None]
        np.copyto(wanted[:, :keys], slots[:, :keys], where=real)
        stale = wanted != self._slots[rows, :read]
        stale |= self._cache.written[wanted] > self._made[rows][:, None]
        stale[each, lengths - 1] = False  # the inputs' own keys: `store` writes them
        self._stale = None
        if stale.any():
            at, column = np.nonzero(stale)
            self._stale = self._tensor(rows[at] * self.room + column)
            self._sources = self._tensor(wanted[at, column])
        self._own = self._tensor(np.sort(rows * self.room + lengths - 1))
        self._slots[rows, :read] = wanted
        # What was made ready further on is not kept up to date: it counts as a copy of nothing.
        longer = rows[self._ready[rows] > read]
        if longer.size:
            self._slots[longer, read:] = -1
        self._ready[rows] = read
        self._lengths[rows] = lengths
        self._row_of[slots[each, lengths - 1]] = rows + 1
        self._made[rows] = -1  # a forward that fails before its last layer leaves them unfinished
        self._now, self._clock = rows, self._cache.clock

    def _grow(self, count: int) -> None:
        device = self._cache.data.device
        for i, old in enumerate(self._layers):
            shape = (count * self.room, old.shape[1])
            self._layers[i] = zeros(shape, old.dtype, device)
            self._layers[i][: old.shape[0]] = old
        more = count - self._lengths.size
        none = np.full((more, self.room), -1, np.int64)
        self._slots = np.concatenate([self._slots, none])
        self._lengths = np.concatenate([self._lengths, np.zeros(more, np.int64)])
        self._ready = np.concatenate([self._ready, np.zeros(more, np.int64)])
        self._made = np.concatenate([self._made, none[:, 0]])
        self._wanted = np.concatenate([self._wanted, np.full(more, NEVER)])

    def _tensor(self, array: Int64) -> torch.Tensor:
        return upload(array, self._cache.data.device)


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
        self._used: dict[int, int] = {}  # the last forward of each
        self._forwards = 0
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
        self._forwards += 1
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
            cache, self._used[room] = self._by_room[room], self._forwards
            rows = cache.open(slots(some), keys)
            self.copied += cache.copied
            held = rows >= 0
            if held.any():
                found[cache] = _spans(cache, some[held], rows[held], int(keys.max()))
        # Sequences that grow leave one room after the other.
        for room in [r for r, at in self._used.items() if at + UNUSED < self._forwards]:
            del self._by_room[room], self._used[room]
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
