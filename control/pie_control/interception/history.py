"""Durations of waits by kind: of earlier ones, and of one that goes on, as expected."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from itertools import accumulate

NEWEST = 64  # newest waits of a kind
MOST_KINDS = 4096  # those not seen for longest make room


class _Waits:
    """Waits of one kind, sorted lazily: policies ask far more often than waits end."""

    def __init__(self) -> None:
        self._newest: deque[float] = deque(maxlen=NEWEST)
        self._sorted: list[float] | None = None
        self._sums: list[float] = []  # of the i longest

    def add(self, seconds: float) -> None:
        self._newest.append(seconds)
        self._sorted = None

    def mean_beyond(self, elapsed: float) -> float | None:
        """Mean of those that lasted longer; None if there are none."""
        if self._sorted is None:
            self._sorted = sorted(self._newest)
            self._sums = list(accumulate(reversed(self._sorted), initial=0.0))
        count = len(self._sorted) - bisect_right(self._sorted, elapsed)
        return self._sums[count] / count if count else None

    def median_beyond(self, elapsed: float) -> float:
        """Median of those that lasted longer, of which there is one."""
        assert self._sorted is not None, "mean_beyond comes first"
        first = bisect_right(self._sorted, elapsed)
        return self._sorted[(first + len(self._sorted)) // 2]


class Durations:
    """Durations by kind: a user's tool, host, or what else a program waits for."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], _Waits] = OrderedDict()

    def add(self, user: str, kind: str, seconds: float) -> None:
        """Notes a wait that has ended."""
        key = (user, kind)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Waits()
            if len(self._seen) > MOST_KINDS:
                self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        seen.add(seconds)

    def mean_beyond(self, user: str, kind: str, elapsed: float) -> float | None:
        """The mean of those that lasted longer; None if there were none."""
        seen = self._seen.get((user, kind))
        return None if seen is None else seen.mean_beyond(elapsed)

    def remaining(self, user: str, kind: str, elapsed: float) -> tuple[float, float]:
        """Seconds that a wait is expected to last beyond those that it has lasted, and seconds
        after which half of such waits have ended.

        The mean over earlier waits that were longer, and the median. If none was, as long again as
        so far: InferCept's estimate where nothing is known of a call.
        """
        seen = self._seen.get((user, kind))
        mean = None if seen is None else seen.mean_beyond(elapsed)
        if seen is None or mean is None:
            return elapsed, elapsed
        # Rounding may put the mean of sums below the shortest of them.
        return max(0.0, mean - elapsed), seen.median_beyond(elapsed) - elapsed

    def __len__(self) -> int:
        return len(self._seen)
