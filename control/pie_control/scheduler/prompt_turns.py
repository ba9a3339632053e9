"""Whose prompts go first where those of several users wait: the user's who has had the least."""

from __future__ import annotations

from collections.abc import Iterable


class PromptTurns:
    """Counts inputs of prompts since those of several users have waited."""

    def __init__(self) -> None:
        """No prompt waits."""
        self._had: dict[str, int] = {}  # by user

    def wait(self, users: Iterable[str]) -> None:
        """These users' prompts wait now. A new one is as if it had had what the last one had."""
        least = min(self._had.values(), default=0)
        self._had = {user: self._had.get(user, least) for user in users}

    def had(self, user: str) -> int:
        """What a user who waits has had."""
        return self._had[user]

    def is_next(self, user: str) -> bool:
        """Whether no user who waits has had less."""
        return self._had[user] == min(self._had.values())

    def charge(self, user: str, inputs: int) -> None:
        """So many inputs of a user's prompts are in a batch."""
        self._had[user] += inputs
