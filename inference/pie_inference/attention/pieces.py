"""Sequences of a forward in pieces, pieces of similar size in groups, and where their keys lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pie_inference.attention.sequences import Sequences

MAX_SCORES = 1 << 23  # padded queries x keys of a group: bounds the memory of its mask
GROUP_COST = 1024  # work of a further group, in gathered keys

Int64 = NDArray[np.int64]


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
