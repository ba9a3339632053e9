"""How long the plan that the worker runs takes still. Pure: sizes and times in, seconds out."""

from __future__ import annotations

import math
from collections import deque

SLOWER = 1.02  # a plan later, the best rate may be worse by so much: it follows slow changes
CERTAIN = 0.9  # of the time that a plan takes at the best rate


class RunningPlans:
    """The plans at the worker, by the inputs of their forwards.

    A plan takes no less than its inputs take at the best rate of the plans before, in which many
    are computed together. One of few inputs takes longer than that, which is never told too long.
    """

    def __init__(self) -> None:
        self._inputs: deque[int] = deque()
        self._began = 0.0
        self._least = math.inf  # seconds for an input

    def sent(self, now: float, inputs: int) -> None:
        """A plan was sent, with so many inputs."""
        if not self._inputs:
            self._began = now
        self._inputs.append(inputs)

    def over(self, now: float, seconds: float) -> None:
        """The first plan is over, and has taken so long; the next one begins."""
        inputs = self._inputs.popleft() if self._inputs else 0
        self._began = now
        if inputs:
            self._least = min(self._least * SLOWER, seconds / inputs)

    def lost(self) -> None:
        """The worker has no plan any more."""
        self._inputs.clear()

    def left(self, now: float) -> float:
        """Seconds for which the first plan surely goes on; 0 if nothing is known."""
        if not self._inputs or self._least == math.inf:
            return 0.0
        return max(0.0, self._began + CERTAIN * self._least * self._inputs[0] - now)
