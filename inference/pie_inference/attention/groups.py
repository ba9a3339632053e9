"""Queries and keys of a forward as groups: each is one call of a kernel in every layer.

An *input* is numbered as the batch lists them, `0 .. t - 1`, one sequence after the other; a *slot*
of the KV pool is where the key and the value of a token lie for good.

A *piece* is some consecutive inputs of one sequence with the keys that they may attend to. Pieces
of a group are padded to one number of queries and one of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pie_inference.attention import AttentionOptions, Window, outside
from pie_inference.attention.sequences import Sequences
from pie_inference.device import Bool, Int32, Int64, upload
from pie_inference.memory.kv_cache import KvCache

MAX_SCORES = 1 << 23  # padded queries x keys of a group: bounds the memory of its mask
GROUP_COST = 1024  # work of a further group, in gathered keys
MAX_GATHER_BYTES = 64 << 20  # keys and values of a group that are gathered at once
TILE_QUERIES, TILE_KEYS = 8, 128  # of `Groups.tiles`: sizes are multiples of these

Rows = torch.Tensor | slice  # indices; a slice if they are consecutive, for then nothing is copied


class KeySlots:
    """Slots of each sequence's keys, its context before its inputs, in one array."""

    def __init__(self, s: Sequences) -> None:
        """Finds them all."""
        inputs, context = np.diff(s.input_starts), np.diff(s.context_starts)
        self.starts = s.input_starts + s.context_starts
        self.slots = np.empty(s.input_slots.size + s.context_slots.size, np.int64)
        of_context = np.arange(s.context_slots.size) + np.repeat(s.input_starts[:-1], context)
        of_inputs = np.arange(s.input_slots.size) + np.repeat(s.context_starts[1:], inputs)
        self.slots[of_context] = s.context_slots
        self.slots[of_inputs] = s.input_slots


class Piece(NamedTuple):
    """Some consecutive inputs of a sequence, and the keys that they may attend to."""

    sequence: int
    first: int  # input, counted within the sequence
    queries: int
    keys: int


def pieces_of(s: Sequences) -> list[Piece]:
    """Sequences, cut where one alone would exceed `MAX_SCORES`."""
    pieces = []
    inputs, context = np.diff(s.input_starts), np.diff(s.context_starts)
    for i in np.flatnonzero(inputs).tolist():
        queries, before = int(inputs[i]), int(context[i])
        if queries == 1:
            pieces.append(Piece(i, 0, 1, before + 1))
            continue
        step = max(1, MAX_SCORES // max(1, before + queries))
        for first in range(0, queries, step):
            count = min(step, queries - first)
            # Without an explicit rule nothing after the last query is seen.
            seen = before + queries if i in s.visible else before + first + count
            pieces.append(Piece(i, first, count, seen))
    return pieces


def tiles_of(s: Sequences) -> list[Piece]:
    """Sequences, cut at multiples of `TILE_QUERIES` keys."""
    tiles = []
    inputs, context = np.diff(s.input_starts), np.diff(s.context_starts)
    for i in np.flatnonzero(inputs).tolist():
        queries, before = int(inputs[i]), int(context[i])
        first = 0
        while first < queries:
            count = min(TILE_QUERIES - (before + first) % TILE_QUERIES, queries - first)
            seen = before + (queries if i in s.visible else first + count)
            tiles.append(Piece(i, first, count, seen))
            first += count
    return tiles


def grouped(pieces: list[Piece], most_keys: int) -> list[list[Piece]]:
    """Pieces of similar size together, so long as padding costs less than a further group."""
    groups: list[list[Piece]] = []
    paid, group_keys = 0.0, 0
    for piece in sorted(pieces, key=lambda p: (p.queries, p.keys)):
        alone = _work(1, piece.queries, piece.keys)
        if groups:
            group = groups[-1]
            batch = len(group) + 1
            keys = max(piece.keys, group_keys)
            together = _work(batch, piece.queries, keys)
            if (
                together <= paid + alone + GROUP_COST
                and batch * piece.queries * keys <= MAX_SCORES
                and batch * keys <= most_keys
            ):
                group.append(piece)
                paid, group_keys = together, keys
                continue
        groups.append([piece])
        paid, group_keys = alone, piece.keys
    for group in groups:
        group.sort(key=lambda p: (p.sequence, p.first))
    return groups


def _work(batch: int, queries: int, keys: int) -> float:
    """Cost of a padded group, in gathered keys."""
    return batch * keys * (1 + queries / 8)


@dataclass(frozen=True, slots=True)
class Visibility:
    """The keys that queries of a group see: all keys, earlier ones, or those that a mask shows."""

    mask: torch.Tensor | None  # [batch, 1, queries, keys], added to the scores
    causal: bool
    blank: torch.Tensor | None  # rows that see nothing; the mask leaves them one key


class Padded:
    """The keys and queries of pieces, padded to one size by repeating a row of the same piece."""

    def __init__(
        self, sequences: Sequences, pieces: list[Piece], least: tuple[int, int] = (1, 1)
    ) -> None:
        """Lays out pieces of sequences, of so many queries and keys at least."""
        sequence, first, self.queries, self.keys = np.array(pieces, np.int64).T
        self.sequence, self._first = sequence, first
        self.lanes = np.arange(max(int(self.queries.max()), least[0]))
        self.width = max(int(self.keys.max()), least[1])  # keys, padded
        inputs = sequences.input_starts[sequence] + first
        # [batch, queries] inputs of the forward
        self.rows = inputs[:, None] + np.minimum(self.lanes, self.queries[:, None] - 1)
        # [batch] keys before the queries
        self._before = np.diff(sequences.context_starts)[sequence] + first
        self._sequences = sequences
        self._explicit = least != (1, 1)  # a mask always: without one it is another kernel
        ruled = list(sequences.visible)
        self._ruled = np.flatnonzero(np.isin(sequence, ruled)).tolist() if ruled else []

    def seen(self) -> Bool:
        """`[batch, queries, keys]`: by the contract's rule, or by explicit masks."""
        last = np.minimum(self._before[:, None] + self.lanes, self.keys[:, None] - 1)
        seen: Bool = np.arange(self.width) <= last[:, :, None]
        for b in self._ruled:
            rule = self._sequences.visible[int(self.sequence[b])]
            first, queries, keys = int(self._first[b]), int(self.queries[b]), int(self.keys[b])
            rows = rule[first : first + queries]
            seen[b, :queries] = np.arange(seen.shape[2]) < keys
            seen[b, :queries, keys - rows.shape[1] : keys] = rows
        return seen

    def everything(self, dtype: torch.dtype, device: torch.device) -> Visibility:
        """The keys that the queries see if no window hides anything."""
        if self._ruled or self._explicit:
            return visibility(self.seen(), dtype, device)
        if self.lanes.size > 1:
            if self._before.any():
                return visibility(self.seen(), dtype, device)
            # The kernels' own causality says all: query `i` sees the keys up to `i`.
            return Visibility(mask=None, causal=True, blank=None)
        if (self.keys == self.width).all():  # every query sees every key
            return Visibility(mask=None, causal=False, blank=None)
        hidden = upload(np.arange(self.width) >= self.keys[:, None], device)
        return Visibility(added_mask(hidden, dtype)[:, None, None], causal=False, blank=None)

    def hidden_by(self, window: Window, key_positions: Int32) -> Bool | None:
        """`[batch, queries, keys]` that lie before a window of positions, or None if none does; of
        keys at positions `[batch, keys]`.
        """
        own = self._sequences.positions[self.rows]
        first, last = key_positions.min(1), own.max(1)
        if not outside(window, last, first).any():
            return None
        hidden: Bool = outside(window, own[:, :, None], key_positions[:, None, :])
        return hidden if hidden.any() else None


def visibility(seen: Bool, dtype: torch.dtype, device: torch.device) -> Visibility:
    """A mask of what is seen, `[batch, queries, keys]`, which is changed.

    A row that sees nothing is left one key, for a softmax over nothing is not a number.
    """
    nothing = np.flatnonzero(~seen.any(axis=2))
    seen.reshape(-1, seen.shape[2])[nothing, 0] = True
    mask = added_mask(upload(~seen, device).unsqueeze(1), dtype)
    return Visibility(mask, False, upload(nothing, device) if nothing.size else None)


def added_mask(hidden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The addend of scores: minus infinity where a key is hidden, else 0."""
    mask = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return mask.masked_fill_(hidden, float("-inf"))


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces padded to one size: all arguments of one kernel call, the same in every layer."""

    batch: int  # pieces
    queries: int  # of each, padded
    keys: int  # of each, padded
    key_index: Rows  # [batch * keys] slots
    rows: Rows  # [batch * queries] inputs
    real: torch.Tensor | None  # those of them that are not padding; None if all are
    targets: Rows  # the real ones
    seen: dict[Window | None, Visibility]  # by the sliding window of the layer


def rows_of(indices: Int64, device: torch.device) -> Rows:
    """Indices in the form that costs a layer least."""
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == indices.size and bool((np.diff(indices) == 1).all()):
        return slice(first, last + 1)
    return upload(indices, device)


class Groups:
    """Makes the groups of forwards over one cache."""

    def __init__(self, cache: KvCache, heads: int, layers: Sequence[AttentionOptions]) -> None:
        """Takes the number of query heads, and the options of each layer."""
        self._cache = cache
        self._device = cache.data.device
        self._heads = heads
        width = cache.rows[0].shape[1] * cache.data.itemsize  # bytes of a slot
        self._most_keys = max(1, MAX_GATHER_BYTES // width)
        self.windows = {options.window for options in layers if options.window is not None}

    def gathered(self, s: Sequences) -> list[Group]:
        """All inputs, in groups of similar size."""
        keys, groups = KeySlots(s), []
        for some in grouped(pieces_of(s), self._most_keys):
            padded = Padded(s, some)
            real = None
            if (padded.queries != padded.lanes.size).any():
                real = np.flatnonzero((padded.lanes < padded.queries[:, None]).reshape(-1))
            groups.append(self._group(keys, padded, real))
        return groups

    def tiles(self, s: Sequences) -> list[Group]:
        """All inputs, in shapes that follow from the place of a token in its own sequence alone.

        A kernel's order of sums depends on the shapes. Here so many queries at most, of tokens
        between two multiples of `TILE_QUERIES`, attend to a multiple of `TILE_KEYS`.
        """
        keys = KeySlots(s)
        most = min(self._most_keys, MAX_SCORES // (TILE_QUERIES * self._heads))
        by_width: dict[int, list[Piece]] = {}
        for piece in tiles_of(s):
            by_width.setdefault(-(-piece.keys // TILE_KEYS) * TILE_KEYS, []).append(piece)
        groups = []
        for width, pieces in sorted(by_width.items()):
            at_once = max(1, most // width)
            for first in range(0, len(pieces), at_once):
                padded = Padded(s, pieces[first : first + at_once], (TILE_QUERIES, width))
                real = np.flatnonzero(padded.lanes < padded.queries[:, None])
                groups.append(self._group(keys, padded, real))
        return groups

    def _group(self, keys: KeySlots, padded: Padded, real: Int64 | None) -> Group:
        rows = padded.rows.reshape(-1)
        columns = np.minimum(np.arange(padded.width), padded.keys[:, None] - 1)
        slots = keys.slots[keys.starts[padded.sequence][:, None] + columns]
        return Group(
            batch=padded.keys.size,
            queries=padded.lanes.size,
            keys=padded.width,
            key_index=rows_of(slots.reshape(-1), self._device),
            rows=rows_of(rows, self._device),
            real=None if real is None else upload(real, self._device),
            targets=rows_of(rows if real is None else rows[real], self._device),
            seen=self._seen(padded, slots),
        )

    def _seen(self, padded: Padded, slots: Int64) -> dict[Window | None, Visibility]:
        """The queries' masks, for every sliding window of a layer; None is for no window."""
        dtype = self._cache.dtype
        everything = padded.everything(dtype, self._device)
        found: dict[Window | None, Visibility] = {None: everything}
        if not self.windows:
            return found
        positions = self._cache.positions[slots]
        for window in self.windows:
            hidden = padded.hidden_by(window, positions)
            # Most contexts are shorter than the window: then the mask of the other layers serves.
            found[window] = (
                everything
                if hidden is None
                else visibility(padded.seen() & ~hidden, dtype, self._device)
            )
        return found
