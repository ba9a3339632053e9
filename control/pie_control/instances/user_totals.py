"""What the instances of each user have together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from pie_control.instances.futures import FutureCount
from pie_control.instances.instance import Instance
from pie_control.instances.message_bytes import MessageBytes


class Together(NamedTuple):
    """What all instances of a user count in one place."""

    messages: MessageBytes
    futures: FutureCount


class UserTotals:
    """By user, while instances of theirs are alive: their number, messages, futures, memory."""

    def __init__(self, together: Callable[[str], Together]) -> None:
        """Has no user yet; `together` makes what a user's instances count in."""
        self._make = together
        self._alive: Counter[str] = Counter()
        self._together: dict[str, Together] = {}
        self.memory: Counter[str] = Counter()  # bytes, when it was last looked at

    def together(self, user: str) -> Together:
        """What a user's instances count in."""
        if user not in self._together:
            self._together[user] = self._make(user)
        return self._together[user]

    def add(self, instance: Instance) -> None:
        """An instance is alive from now on."""
        self._alive[instance.user] += 1

    def remove(self, instance: Instance) -> None:
        """An instance is alive no more."""
        user = instance.user
        self.memory[user] = max(0, self.memory[user] - instance.memory_bytes)
        self._alive[user] -= 1
        if not self._alive[user]:
            del self._alive[user], self.memory[user]
            self._together.pop(user, None)

    def alive(self, user: str) -> int:
        """Instances."""
        return self._alive[user]

    def messages(self, user: str) -> int:
        """Bytes that wait in mailboxes."""
        return self._together[user].messages.held if user in self._together else 0

    def futures(self, user: str) -> int:
        """Futures that are open."""
        return self._together[user].futures.open if user in self._together else 0
