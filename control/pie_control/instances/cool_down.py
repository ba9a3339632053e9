"""Rest of users whose guests have had a long turn while others are there.

One host call cannot be divided, nor can one instruction, and some take long: 2 MB of bytes come out
of a guest in 70 ms, 190 MB are copied within it in 25, and the first time, when the system makes
their pages, in 150. A guest that is ready goes before the next such turn, but one that waits for
the worker, a launch or a client is not ready, and would meet one at every step of its way. So after
a long turn a user's guests have none for as long as that took: half of the time is free of them, in
one piece. Who goes on so rests longer, up to eight times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Set

LONG_NS = 20_000_000  # of a turn; a guest's own code is interrupted sooner
PRESENT_NS = 1_000_000_000  # a user is there for so long after a turn or a launch
# Long turns of so much together lengthen a rest by what the last one took. Of those before only
# half count after a while.
STRAIN_NS, HALF_NS = 100_000_000, 2_000_000_000
MOST_TIMES = 8.0


class CoolDown:
    """Until when users rest. Times are in nanoseconds, of the clock that measures turns."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        self._weight_of = weight_of
        self._seen: dict[str, int] = {}  # when users were there last
        self.until: dict[str, int] = {}  # of users who rest, or have rested
        self._strains: dict[str, tuple[float, int]] = {}  # long turns together, and when

    def comes(self, user: str, now: int) -> None:
        """A user has a new guest."""
        self._seen[user] = now

    def ran(self, user: str, began: int, ended: int) -> bool:
        """A guest of a user has had a turn. True if they rest now."""
        self._seen[user] = ended
        took = ended - began
        if took <= LONG_NS:
            return False
        strain = self._strain(user, took, ended)
        self._seen = {each: seen for each, seen in self._seen.items() if seen > ended - PRESENT_NS}
        if len(self._seen) == 1:
            return False
        times = min(MOST_TIMES, 1.0 + strain / STRAIN_NS)
        self.until[user] = ended + int(took * times / self._weight_of(user))
        return True

    def _strain(self, user: str, took: int, now: int) -> float:
        """Sum of a user's long turns before this one, which counts from now on."""
        strains = {
            each: (left, now)
            for each, (strain, at) in self._strains.items()
            if (left := strain * math.pow(0.5, (now - at) / HALF_NS)) > LONG_NS
        }
        before, _ = strains.get(user, (0.0, now))
        strains[user] = before + took, now
        self._strains = strains
        return before

    def at(self, now: int) -> Set[str]:
        """The users who rest."""
        if self.until:
            self.until = {user: until for user, until in self.until.items() if until > now}
        return self.until.keys()

    def left(self, now: int) -> int | None:
        """For how long the first of them still rests; None if none does."""
        return min(self.until.values()) - now if self.at(now) else None
