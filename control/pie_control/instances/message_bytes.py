"""Bytes of messages that wait for their readers, of each user in all his mailboxes together."""

from __future__ import annotations

from collections.abc import Callable


class MessageBytes:
    """What the mailboxes of one user's live instances hold. At the most, all of them are full.

    Attributes:
        held: bytes, those of items that are lent to futures included.
    """

    __slots__ = ("_most", "_waiting", "held")

    def __init__(self, most: int) -> None:
        """Holds nothing yet; `most` bytes at the most, and what the last message has above that."""
        self.held = 0
        self._most = most
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def has_room(self) -> bool:
        """Whether mailboxes may take an item."""
        return self.held < self._most

    def add(self, size: int) -> None:
        """A mailbox has taken an item."""
        self.held += size

    def remove(self, size: int) -> None:
        """Items are gone from a mailbox. Tells those that wait, if there is room now."""
        self.held -= size
        while self._waiting and self.has_room:
            callback = next(iter(self._waiting))
            del self._waiting[callback]
            callback()

    def when_room(self, callback: Callable[[], None]) -> None:
        """Calls back once, when there is room again; a callback that waits already waits once."""
        self._waiting[callback] = None
