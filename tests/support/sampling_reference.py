"""Sampling by the book: exact probabilities in float64, and a chi-square test."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def probabilities(
    logits: NDArray[np.float32],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> NDArray[np.float64]:
    """The distribution `[vocabulary]` that a sampler with these parameters draws from."""
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    if temperature == 0:
        out = np.zeros(len(logits))
        out[order[0]] = 1.0
        return out
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - float(logits.max())) / temperature
    weights = np.exp(scaled[order])
    if top_k:
        weights[top_k:] = 0.0
    if top_p < 1:
        before = np.cumsum(weights) - weights
        weights[before >= top_p * weights.sum()] = 0.0
        weights[0] = 1.0
    weights[weights < min_p] = 0.0
    out = np.zeros(len(logits))
    out[order] = weights / weights.sum()
    return out


def chi_square_passes(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> bool:
    """Whether counts may come from a distribution: false for one in a million that do.

    Cells that expect fewer than five are joined. The quantile is Wilson and Hilferty's (1931).
    """
    assert not counts[expected == 0].any(), "something impossible was drawn"
    wanted = expected * counts.sum()
    small = wanted < 5
    cells = [(c, w) for c, w in zip(counts[~small], wanted[~small], strict=True)]
    if wanted[small].sum() > 0:
        cells.append((counts[small].sum(), max(wanted[small].sum(), 1e-9)))
        if cells[-1][1] < 5 and len(cells) > 1:
            (c, w), (c2, w2) = cells.pop(), cells.pop()
            cells.append((c + c2, w + w2))
    degrees = len(cells) - 1
    if degrees == 0:
        return True
    statistic = sum((c - w) ** 2 / w for c, w in cells)
    z = 4.75  # one in a million
    limit = degrees * (1 - 2 / (9 * degrees) + z * math.sqrt(2 / (9 * degrees))) ** 3
    return bool(statistic < limit)
