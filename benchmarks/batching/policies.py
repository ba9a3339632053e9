"""The paper's policies that wait: *K-only* for so many commands, *T-only* for so long.

A setting names one: `policy = "benchmarks.batching.policies:k_only_8"`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from pie_control.scheduler.adaptive import Adaptive

PATIENCE = 0.2  # seconds after which K-only sends fewer: the last ones would never be sent


class Waits(Adaptive):
    """Sends a plan once so many queues and runs have something to send, or the first of them has
    waited for so many seconds. What a plan holds is as ever.
    """

    def __init__(self, count: float, seconds: float, *settings: Any) -> None:
        """Takes these, and what `Adaptive` takes."""
        super().__init__(*settings)
        self._count, self._seconds = count, seconds
        self._since: float | None = None

    def wait(self, now: float, ready: Callable[[], int]) -> float:
        """Seconds that are left."""
        count = ready()
        since = now if self._since is None else self._since
        left = 0.0 if count >= self._count else since + self._seconds - now
        self._since = since if count and left > 0 else None
        return max(0.0, left)


k_only_8, k_only_32 = (partial(Waits, count, PATIENCE) for count in (8, 32))
t_only_2, t_only_20 = (partial(Waits, math.inf, ms / 1000) for ms in (2, 20))
