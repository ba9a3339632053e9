"""A pool of samplers, and what plain definitions of rules, written out for one row, are made of."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.sampling.pool import SamplerPool
from pie_inference.sampling.remembered import SavedLogits
from support.model_rig import ints

VOCABULARY = 64
CPU = torch.device("cpu")
Row = NDArray[np.float64]


def chances(row: Row) -> Row:
    """The probabilities of logits."""
    weights = np.exp(row - row.max())
    found: Row = weights / weights.sum()
    return found


def keep(row: Row, kept: list[int]) -> Row:
    """The logits with all other tokens ruled out."""
    out = np.full_like(row, -np.inf)
    out[kept] = row[kept]
    return out


def ranked(row: Row) -> list[int]:
    """Tokens from the likeliest on; of equal ones the first."""
    return sorted(range(len(row)), key=lambda t: (-row[t], t))


class SamplerRows:
    """Samplers of a pool, one after the other in slots and rows."""

    def __init__(self) -> None:
        self.pool = SamplerPool(VOCABULARY, CPU, 16)
        self.kept = SavedLogits(VOCABULARY, CPU)

    def feed(self, slot: int, tokens: list[int], chosen: int = 0) -> None:
        """Gives a sampler tokens, of which it has chosen so many before."""
        count = len(tokens)
        places = np.arange(chosen, chosen + count)
        left = np.arange(count)[::-1]
        self.pool.feed(
            np.full(count, slot, np.int32), ints(tokens), np.zeros(count, np.bool_), places, left
        )

    def choose(self, slot: int, step: int, token: int) -> None:
        """Notes what a sampler has chosen."""
        self.pool.note(ints([slot]), np.array([step], np.uint32), torch.tensor([token]))
