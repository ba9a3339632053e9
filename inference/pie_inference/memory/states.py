"""States of recurrent layers, of the sequences that have come last."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from pie_inference.device import Bool, Int32, Int64, zeros
from pie_inference.memory.kv_cache import KvCache


class States:
    """`[layers, rows, heads, key_dim, value_dim]` in float32: a row is a sequence's state.

    A state is a function of what its sequence's slots hold, in order, and can be computed from them
    again. So a row is a mere copy, found by the slots, and used as long as none of them has been
    written since. Rows that have not been used for longest are taken for others.

    A state from which a longer one was computed is a *border*: a sequence that is cut, or another
    one that begins alike, goes on from it. Borders have half of the rows; beyond that they take
    each other's, so that those of a long text leave the ends of other sequences where they are.
    """

    def __init__(
        self, cache: KvCache, sizes: tuple[int, int, int, int], rows: int, history: int
    ) -> None:
        """Makes rows, all empty, of states of such sizes: layers, heads, key and value dims; their
        layers look back at `history` tokens.
        """
        self.cache, self.history = cache, history
        layers, *state = sizes
        self.data = zeros((layers, rows, *state), torch.float32, cache.data.device)
        self._tokens: Int64 = np.zeros(rows, np.int64)  # of each row's sequence; 0: empty
        self._made: Int64 = np.zeros(rows, np.int64)  # the pool's clock then
        self._used: Int64 = np.zeros(rows, np.int64)  # the last forward that used it
        self._digest = [b""] * rows  # of the slots
        self._border: Bool = np.zeros(rows, np.bool_)
        # The row, plus one, of the last sequence that ended with a slot.
        self._row_of: Int32 = np.zeros(cache.written.size, np.int32)
        self._forward = 0

    def begin(self) -> None:
        """Begins a forward: rows that it uses are not given away during it."""
        self._forward += 1

    def find(self, slots: Int64) -> tuple[int, int]:
        """The row of the state after as many of these slots as possible, and how many; -1 and 0 if
        there is none.
        """
        rows = self._row_of[slots].astype(np.int64) - 1
        some = np.flatnonzero(rows >= 0)
        some = some[self._tokens[rows[some]] == some + 1]
        for last in some[::-1].tolist():
            row, known = int(rows[last]), slots[: last + 1]
            whole = self.cache.written[known].max() <= self._made[row]
            if whole and self._digest[row] == _digest(known):
                self._used[row] = self._forward
                return row, last + 1
        return -1, 0

    def take(self, *, border: bool = False) -> int:
        """An empty row, for a border or not; -1 if this forward uses all that may be taken."""
        used, borders = self._used, np.flatnonzero(self._border)
        row = int(used.argmin())
        if 2 * borders.size >= used.size:
            other = int(borders[used[borders].argmin()])
            if border or used[other] < self._forward:
                row = other
        if used[row] == self._forward:
            return -1
        self.empty(row)
        self._used[row] = self._forward
        self._border[row] = border
        return row

    def go_on(self, row: int) -> None:
        """Notes that a longer state is computed from a row's, which stays."""
        self._border[row] = True

    def empty(self, row: int) -> None:
        """Forgets what a row is of, for it is about to be written."""
        self._tokens[row] = 0
        self._border[row] = False

    def fill(self, row: int, slots: Int64) -> None:
        """Notes that a row has become the state after these slots."""
        self._tokens[row] = slots.size
        self._made[row] = self.cache.clock
        self._digest[row] = _digest(slots)
        self._row_of[slots[-1]] = row + 1


def _digest(slots: Int64) -> bytes:
    return hashlib.blake2b(slots.tobytes(), digest_size=16).digest()
