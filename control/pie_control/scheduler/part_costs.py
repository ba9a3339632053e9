"""The costs of parts of prompts, learned from what batches of them took."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

KEPT = 0.95  # of what earlier batches count for, with each later one
LONGER = 2  # a part has at most so many times the inputs of the longest one so far
# A batch, its inputs, the pairs of an input and what it attends to, and the context: in units of
# which each costs about as much, so that few batches say little of what they do not show.
UNITS = np.array([0.1, 1 / 256, 1 / (256 << 12), 1 / (8 << 12)])
_RIDGE = 1e-4


class PartCosts:
    """The cost of parts of one kind, as the sum of four terms, none of which is negative: for the
    batch, for its inputs, for each pair of an input and a token before, and for the context.

    The terms are fitted by least squares; the newest batches count most.
    """

    def __init__(self) -> None:
        self._squares = np.zeros((4, 4))
        self._products = np.zeros(4)
        self._seconds = [0.0] * 4  # of each term's unit
        self._longest = 0

    def __bool__(self) -> bool:
        """True if any have been measured."""
        return self._longest > 0

    def took(self, parts: Sequence[tuple[int, int]], seconds: float) -> None:
        """Learns what a batch took, of some parts: inputs and context of each."""
        inputs = sum([count for count, _ in parts])
        pairs = sum([count * context for count, context in parts])
        terms = np.array([1.0, inputs, pairs, sum([context for _, context in parts])]) * UNITS
        self._squares = KEPT * self._squares + np.outer(terms, terms)
        self._products = KEPT * self._products + terms * seconds
        self._seconds = (_least_squares(self._squares, self._products) * UNITS).tolist()
        self._longest = max(self._longest, inputs)

    def of(self, inputs: int, context: int) -> float:
        """Seconds of so many inputs behind such a context; 0 if nothing is known."""
        batch, each, pair, token = self._seconds
        return batch + each * inputs + pair * inputs * context + token * context

    def fitting(self, seconds: float, context: int) -> int:
        """How many inputs behind such a context take so many seconds."""
        batch, each, pair, token = self._seconds
        most = LONGER * self._longest
        left, cost = seconds - batch - token * context, each + pair * context
        if left <= 0:
            return 0
        return most if cost * most <= left else int(left / cost)


def _least_squares(
    squares: NDArray[np.float64], products: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The terms, none negative, that fit best, as far as leaving out those that are finds it."""
    found = np.zeros(len(products))
    used = np.arange(len(products))
    while used.size:
        part = squares[np.ix_(used, used)] + _RIDGE * np.eye(used.size)
        fitted = np.linalg.solve(part, products[used])
        if (fitted >= 0).all():
            found[used] = fitted
            break
        used = np.delete(used, fitted.argmin())
    return found
