"""Who is there beside a user whose prompts run: what takes long keeps them waiting.

A program that takes one token after the other has nothing queued while its own turn comes. If only
what is queued told who is there, a prompt of another user would have the batch for itself, just
before the next step comes. So a user who has had a step is there for some batches more. Where
several users have prompts only, no token waits for them, and longer batches cost all of them less.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

STAYS = 8  # batches of forwards without a user's step, until he takes none


class Company(Enum):
    """What goes on beside a user's prompts."""

    NONE = auto()  # no other user has a queue, and no step has been taken for a while
    OWN = auto()  # the same user takes steps, and no other has a queue
    RESTS = auto()  # others have queues, and have had no step for a while
    STEPS = auto()  # a user takes steps beside another one's work


class Steppers:
    """Who has had a step in the last batches of forwards."""

    def __init__(self) -> None:
        """Nothing has run."""
        self._batches = 0
        self._last: dict[str, int] = {}  # the batch of a user's last step

    def step(self, users: Collection[str]) -> None:
        """A batch is formed in which these users have steps."""
        self._batches += 1
        for user in users:
            self._last[user] = self._batches
        if len(self._last) > len(users):
            oldest = self._batches - STAYS
            self._last = {user: batch for user, batch in self._last.items() if batch >= oldest}

    def are_several(self, users: Collection[str]) -> bool:
        """Whether others take steps beside the users with work in a batch."""
        return bool(self._last) and len(self._last.keys() | users) > 1

    def company(self, users: Collection[str], here: Collection[str]) -> Company:
        """What goes on beside the users with work in a batch; `here` are all with queues."""
        if self.are_several(users):
            return Company.STEPS
        if len({*users, *here}) > 1:
            return Company.RESTS
        return Company.OWN if self._last else Company.NONE
