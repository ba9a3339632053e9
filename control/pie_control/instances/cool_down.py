"""Rest of users whose guests have had a long turn while others are there.

One host call cannot be divided, and some take long: 2 MB of bytes come out of a guest in 70 ms. A
guest that is ready goes before the next such call, but one that waits for the worker, a launch or a
client is not ready, and would meet one at every step of its way. So after a long turn a user's
guests have none for as long as that took: half of the time is free of them, in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Set

LONG_NS = 20_000_000  # of a turn; a guest's own code is interrupted sooner
PRESENT_NS = 1_000_000_000  # a user is there for so long after a turn or a launch


class CoolDown:
    """Until when users rest. Times are in nanoseconds, of the clock that measures turns."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        """No user rests. Takes a user's weight: his rests are shorter with it."""
        self._weight_of = weight_of
        self._seen: dict[str, int] = {}  # when users were there last
        self._until: dict[str, int] = {}

    def comes(self, user: str, now: int) -> None:
        """A user has a new guest."""
        self._seen[user] = now

    def ran(self, user: str, began: int, ended: int) -> bool:
        """A guest of a user has had a turn. Tells whether he rests now."""
        self._seen[user] = ended
        took = ended - began
        if took <= LONG_NS:
            return False
        self._seen = {each: seen for each, seen in self._seen.items() if seen > ended - PRESENT_NS}
        if len(self._seen) == 1:
            return False
        self._until[user] = ended + int(took / self._weight_of(user))
        return True

    def at(self, now: int) -> Set[str]:
        """The users who rest."""
        if self._until:
            self._until = {user: until for user, until in self._until.items() if until > now}
        return self._until.keys()

    def left(self, now: int) -> int | None:
        """For how long the first of them still rests; None if none does."""
        return min(self._until.values()) - now if self.at(now) else None
