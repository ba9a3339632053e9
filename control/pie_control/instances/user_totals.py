"""Totals of each user: what their instances have together, and launches within a second."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from pie_control.errors import Shortage
from pie_control.instances.futures import FutureCount
from pie_control.instances.instance import Instance
from pie_control.instances.mailbox import MessageBytes
from pie_control.tasks import take_off

_FORGET = 64  # users, before users at rest are forgotten


class Together(NamedTuple):
    """Counters that all instances of a user share."""

    messages: MessageBytes
    futures: FutureCount


class UserTotals:
    """By user, while instances of theirs are alive: their number, messages, futures, memory."""

    def __init__(self, together: Callable[[str], Together]) -> None:
        """Has no user yet; `together` makes what a user's instances count in."""
        self._make = together
        self._alive: Counter[str] = Counter()
        self.asleep: Counter[str] = Counter()  # instances
        self._together: dict[str, Together] = {}
        self.memory: Counter[str] = Counter()  # bytes of guests, when it was last looked at

    def together(self, user: str) -> Together:
        """The counters of a user's instances."""
        if user not in self._together:
            self._together[user] = self._make(user)
        return self._together[user]

    def add(self, instance: Instance) -> None:
        """An instance is alive from now on."""
        self._alive[instance.user] += 1

    def remove(self, instance: Instance) -> None:
        """An instance is alive no more."""
        user = instance.user
        self.memory[user] = max(0, self.memory[user] - instance.guest_bytes)
        self._alive[user] -= 1
        if not self._alive[user]:
            del self._alive[user], self.memory[user]
            if not self.asleep[user]:
                self._together.pop(user, None)

    def sleeps(self, instance: Instance) -> None:
        """One sleeps, which is not alive."""
        self.asleep[instance.user] += 1

    def wakes(self, instance: Instance) -> None:
        """One that has slept is alive again."""
        self.add(instance)
        take_off(self.asleep, instance.user)

    def alive(self, user: str) -> int:
        """Instances."""
        return self._alive[user]

    def memory_of(self, user: str) -> int:
        """Bytes of guests, and of results that they have not taken."""
        held = self._together[user].futures.held if user in self._together else 0
        return self.memory[user] + held

    def messages(self, user: str) -> int:
        """Bytes that wait in mailboxes."""
        return self._together[user].messages.held if user in self._together else 0

    def futures(self, user: str) -> int:
        """Futures that are open."""
        return self._together[user].futures.open if user in self._together else 0


class LaunchRates:
    """A token bucket for each user: one at rest has a second's launches at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Takes the clock, in seconds."""
        self._clock = clock
        self._next: dict[str, float] = {}  # by user: when all their launches are paid for

    def take(self, user: str, rate: float) -> None:
        """A user launches one more, of `rate` a second.

        Raises:
            ApiError: `limit-exceeded`, with the time to wait.
        """
        now, burst = self._clock(), max(1.0, 1 / rate)
        paid = self._next.get(user, 0.0)
        if paid > now + burst + 1e-9:  # so far ahead nothing is paid: the clock has gone back
            paid = now
        paid = max(paid, now) + 1 / rate
        wait = paid - now - burst
        if wait > 1e-9:
            raise Shortage(
                f"you have launched {rate:g} instances within a second, the most that one user may;"
                f" the next one may start in {wait * 1e3:.0f} ms"
            )
        self._next[user] = paid
        if len(self._next) > _FORGET:
            self._next = {each: at for each, at in self._next.items() if at > now}
