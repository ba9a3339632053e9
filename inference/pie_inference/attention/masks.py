"""Which keys the queries of a padded group see, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.attention.sequences import Sequences
from pie_inference.upload import upload

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive inputs of one sequence, and the keys they may attend to."""

    sequence: int
    first: int  # input, counted within the sequence
    queries: int
    keys: int


@dataclass(frozen=True, slots=True)
class Visibility:
    """What the queries of a group see: all keys, earlier ones, or those that a mask shows."""

    mask: torch.Tensor | None  # [batch, 1, queries, keys], added to the scores
    causal: bool
    blank: torch.Tensor | None  # rows that see nothing; the mask leaves them one key


class Padded:
    """The keys and queries of pieces, padded to one size by repeating a row of the same piece."""

    def __init__(self, sequences: Sequences, pieces: list[Piece]) -> None:
        """Lays out pieces of sequences."""
        sequence, first, self.queries, self.keys = np.array(
            [(p.sequence, p.first, p.queries, p.keys) for p in pieces], np.int64
        ).T
        self.sequence = sequence
        self.lanes = np.arange(int(self.queries.max()))
        self.columns = np.minimum(np.arange(int(self.keys.max())), self.keys[:, None] - 1)
        inputs = sequences.input_starts[sequence] + first
        # [batch, queries] inputs of the forward
        self.rows = inputs[:, None] + np.minimum(self.lanes, self.queries[:, None] - 1)
        self._before = (
            np.diff(sequences.context_starts)[sequence] + first
        )  # keys before the queries
        self._sequences = sequences
        self._pieces = pieces
        self._explicit = any(p.sequence in sequences.visible for p in pieces)

    @property
    def padded(self) -> bool:
        """Whether a piece has fewer queries than another."""
        return bool((self.queries != self.lanes.size).any())

    @property
    def causal(self) -> bool:
        """Whether the kernels' own causality says all: query `i` sees the keys up to `i`."""
        return self.lanes.size > 1 and not self._explicit and not self._before.any()

    @property
    def whole(self) -> bool:
        """Whether every query sees every key."""
        equal = not (self.keys != self.columns.shape[1]).any()
        return not self._explicit and self.lanes.size == 1 and equal

    def seen(self) -> Bool:
        """`[batch, queries, keys]`: by the contract's rule, or by explicit masks."""
        last = np.minimum(self._before[:, None] + self.lanes, self.keys[:, None] - 1)
        seen: Bool = np.arange(self.columns.shape[1]) <= last[:, :, None]
        for b, piece in enumerate(self._pieces):
            rule = self._sequences.visible.get(piece.sequence)
            if rule is not None:
                rows = rule[piece.first : piece.first + piece.queries]
                seen[b, : piece.queries] = np.arange(seen.shape[2]) < piece.keys
                seen[b, : piece.queries, piece.keys - rows.shape[1] : piece.keys] = rows
        return seen

    def hidden_by(self, window: int, key_positions: NDArray[np.int32]) -> Bool | None:
        """`[batch, queries, keys]` that lie before a window, or None if none does.

        Args:
            window: in positions.
            key_positions: `[batch, keys]`.
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
