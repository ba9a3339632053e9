"""How long waits of a kind have lasted, and how long one that goes on may still last."""

from __future__ import annotations

from collections import OrderedDict, deque

KEPT = 64  # newest waits of a kind
MOST_KINDS = 4096  # those not seen for longest make room


class Durations:
    """Durations by kind: a user's tool, host, or what else a program waits for."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, str], deque[float]] = OrderedDict()

    def add(self, user: str, kind: str, seconds: float) -> None:
        """Notes a wait that has ended."""
        key = (user, kind)
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = deque(maxlen=KEPT)
            if len(self._seen) > MOST_KINDS:
                self._seen.popitem(last=False)
        self._seen.move_to_end(key)
        seen.append(seconds)

    def remaining(self, user: str, kind: str, elapsed: float) -> float:
        """Seconds that a wait is expected to last beyond those that it has lasted.

        The mean over earlier waits that were longer. If none was, as long again as so far: InferCept's
        estimate where nothing is known of a call.
        """
        longer = [s - elapsed for s in self._seen.get((user, kind), ()) if s > elapsed]
        return sum(longer) / len(longer) if longer else elapsed

    def __len__(self) -> int:
        return len(self._seen)
