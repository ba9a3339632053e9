"""Pieces of sequences, groups of similar ones, and which keys the queries of a group see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.attention.sequences import Sequences
from pie_inference.device import upload

MAX_SCORES = 1 << 23  # padded queries x keys of a group: bounds the memory of its mask
GROUP_COST = 1024  # work of a further group, in gathered keys

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


class KeySlots:
    """Slots of each sequence's keys, its context before its inputs, in one array."""

    def __init__(self, s: Sequences) -> None:
        """Finds them all."""
        inputs, context = np.diff(s.input_starts), np.diff(s.context_starts)
        self.starts = s.input_starts + s.context_starts
        self.counts = inputs + context
        self.slots = np.empty(s.input_slots.size + s.context_slots.size, np.int64)
        of_context = np.arange(s.context_slots.size) + np.repeat(s.input_starts[:-1], context)
        of_inputs = np.arange(s.input_slots.size) + np.repeat(s.context_starts[1:], inputs)
        self.slots[of_context] = s.context_slots
        self.slots[of_inputs] = s.input_slots

    def of(self, members: Int64) -> Int64:
        """`[n, keys]` of some sequences, padded with the last one."""
        counts = self.counts[members]
        columns = np.minimum(np.arange(int(counts.max())), counts[:, None] - 1)
        found: Int64 = self.slots[self.starts[members][:, None] + columns]
        return found


class Piece(NamedTuple):
    """One of `Pieces`."""

    sequence: int
    first: int
    queries: int
    keys: int


def pieces_of(s: Sequences, left: NDArray[np.bool_]) -> list[Piece]:
    """Sequences with inputs left, cut where one alone would exceed `MAX_SCORES`."""
    pieces = []
    inputs, context = np.diff(s.input_starts), np.diff(s.context_starts)
    some = np.flatnonzero(inputs)
    for i in some[left[s.input_starts[some]]].tolist():
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
class Pieces:
    """Some consecutive inputs of a sequence, and the keys they may attend to, `n` times."""

    sequence: Int64  # [n]
    first: Int64  # [n] input, counted within the sequence
    queries: Int64  # [n]
    keys: Int64  # [n]


@dataclass(frozen=True, slots=True)
class Visibility:
    """What the queries of a group see: all keys, earlier ones, or those that a mask shows."""

    mask: torch.Tensor | None  # [batch, 1, queries, keys], added to the scores
    causal: bool
    blank: torch.Tensor | None  # rows that see nothing; the mask leaves them one key


class Padded:
    """The keys and queries of pieces, padded to one size by repeating a row of the same piece."""

    def __init__(self, sequences: Sequences, pieces: Pieces) -> None:
        """Lays out pieces of sequences."""
        self.sequence = sequence = pieces.sequence
        self.queries, self.keys = pieces.queries, pieces.keys
        self.lanes = np.arange(int(self.queries.max()))
        self.width = int(self.keys.max())  # keys, padded
        inputs = sequences.input_starts[sequence] + pieces.first
        # [batch, queries] inputs of the forward
        self.rows = inputs[:, None] + np.minimum(self.lanes, self.queries[:, None] - 1)
        # [batch] keys before the queries
        self._before = np.diff(sequences.context_starts)[sequence] + pieces.first
        self._sequences = sequences
        self._first = pieces.first
        ruled = list(sequences.visible)
        self._ruled = np.flatnonzero(np.isin(sequence, ruled)).tolist() if ruled else []

    @cached_property
    def columns(self) -> Int64:
        """`[batch, width]` keys of each piece, counted within its sequence."""
        found: Int64 = np.minimum(np.arange(self.width), self.keys[:, None] - 1)
        return found

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
        """What the queries see if no window hides anything."""
        if self._ruled:
            return visibility(self.seen(), dtype, device)
        if self.lanes.size > 1:
            if self._before.any():
                return visibility(self.seen(), dtype, device)
            # The kernels' own causality says all: query `i` sees the keys up to `i`.
            return Visibility(mask=None, causal=True, blank=None)
        if (self.keys == self.width).all():  # every query sees every key
            return Visibility(mask=None, causal=False, blank=None)
        hidden = upload(np.arange(self.width) >= self.keys[:, None], device)
        mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
        mask = mask.masked_fill_(hidden, float("-inf"))[:, None, None]
        return Visibility(mask, causal=False, blank=None)

    def hidden_by(self, window: int, key_positions: NDArray[np.int32]) -> Bool | None:
        """`[batch, queries, keys]` that lie before a window of positions, or None if none does; of
        keys at positions `[batch, keys]`.
        """
        own = self._sequences.positions[self.rows]
        if int((own.max(1) - key_positions.min(1)).max()) < window:
            return None
        hidden: Bool = key_positions[:, None, :] <= own[:, :, None] - window
        return hidden if hidden.any() else None


def visibility(seen: Bool, dtype: torch.dtype, device: torch.device) -> Visibility:
    """A mask of what is seen, `[batch, queries, keys]`, which is changed.

    A row that sees nothing is left one key, for a softmax over nothing is not a number.
    """
    nothing = np.flatnonzero(~seen.any(axis=2))
    seen.reshape(-1, seen.shape[2])[nothing, 0] = True
    hidden = upload(~seen, device).unsqueeze(1)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    blank = upload(nothing, device) if nothing.size else None
    return Visibility(mask.masked_fill_(hidden, float("-inf")), causal=False, blank=blank)
