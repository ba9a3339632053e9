"""Messages of clients that wait to be handled: users take turns, and so do one user's connections.

ZeroMQ hands messages over by connection, and some take long to answer: behind those of a user with
many connections another user's launch would wait for all of them. So what has arrived is taken from
ZeroMQ, while no user has too much here, and handled by what each user's messages have cost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from pie_control.fairness import FairQueue, Owner
from pie_py.wire.rpc import Message, NotAMessage, Request

MOST_MESSAGES = 1000  # of a user
MOST_BYTES = 16 << 20  # the same
_MAY_BRING_COMMANDS = frozenset({"launch", "send"})

Content: TypeAlias = Message | NotAMessage | None  # None: its connection's key was removed


class InboundMessage(NamedTuple):
    """A message and the connection that it came by."""

    user: str
    peer: bytes  # routing id
    content: Content
    size: int  # bytes

    @property
    def owner(self) -> Owner:
        """The user and the connection that its handling is charged to.

        The user pays nothing for connections with a key that was removed.
        """
        return Owner("" if self.content is None else self.user, self.peer.hex())

    @property
    def may_bring_commands(self) -> bool:
        """True if an instance may have commands because of it."""
        content = self.content
        return isinstance(content, Request) and content.method in _MAY_BRING_COMMANDS


class Inbox:
    """Messages that wait, of each connection in its order."""

    def __init__(self, weight_of: Callable[[str], float]) -> None:
        """Nothing waits. Takes a user's weight, with which their part of the time grows."""
        self.waiting: FairQueue[InboundMessage] = FairQueue(0.0, weight_of)
        self.messages: Counter[str] = Counter()  # of users with some that wait
        self._bytes: Counter[str] = Counter()
        self.with_commands = 0  # messages because of which instances may have commands
        self.full: set[str] = set()  # users with so much that no more is to be taken from ZeroMQ

    def put(self, message: InboundMessage) -> None:
        """A message has arrived."""
        user = message.owner.user
        self.waiting.push(message.owner, message)
        self.messages[user] += 1
        self._bytes[user] += message.size
        self.with_commands += message.may_bring_commands
        if self.messages[user] >= MOST_MESSAGES or self._bytes[user] >= MOST_BYTES:
            self.full.add(user)

    def take(self) -> InboundMessage | None:
        """The next message."""
        taken = self.waiting.pop()
        if taken is None:
            return None
        (user, _), message = taken
        self.messages[user] -= 1
        self._bytes[user] -= message.size
        self.with_commands -= message.may_bring_commands
        if self.messages[user] < MOST_MESSAGES and self._bytes[user] < MOST_BYTES:
            self.full.discard(user)
        if not self.messages[user]:
            del self.messages[user], self._bytes[user]
        return message

    def charge(self, message: InboundMessage, nanoseconds: int) -> None:
        """A message was handled, and took so long."""
        self.waiting.charge(message.owner, nanoseconds)
