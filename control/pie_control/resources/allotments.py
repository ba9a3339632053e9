"""Users' allotments of a pool: what each holds, beside the equal allotment that is theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol


class Holder(Protocol):
    """An instance."""

    number: int  # of launches before its own
    user: str


class Allotments:
    """Which instances make way for others while a pool is short.

    What is free and what users hold above their allotments is always enough for a user who stays
    within their own, so they never have to wait until others give something up by themselves.
    """

    def __init__(self, size: int, held: Mapping[str, int], exactly: Callable[[str], int]) -> None:
        """Takes the size of the pool and what each user with an instance holds of it at most: what
        several hold may be in it twice. `exactly` looks at what a user holds, once each.
        """
        self._allotment = size / max(1, len(held))
        self._held = {
            user: count if count <= self._allotment else exactly(user)
            for user, count in held.items()
        }

    def within(self, user: str, count: int) -> bool:
        """True if a user with `count` more still holds no more than their allotment."""
        return self._held[user] + count <= self._allotment

    def makes_way(self, other: Holder, instance: Holder, count: int) -> bool:
        """True if an instance must give up what it holds so that another one gets `count` more.

        Within a user the younger one makes way. Of another user it does if they hold more than
        their allotment: each of their instances for a user within their own, else the younger ones.
        """
        younger = other.number > instance.number
        if other.user == instance.user:
            return younger
        above = not self.within(other.user, 0)
        return above and (younger or self.within(instance.user, count))

    def owe(self, user: str, count: int) -> bool:
        """True if users hold above their allotments what another one wants within their own."""
        return self.within(user, count) and any(
            not self.within(other, 0) for other in self._held if other != user
        )
