"""Bytes that connections have been sent and need not have read: ZeroMQ queues them.

ZeroMQ does not report how long its queues are. That a client acknowledges items, or confirms
answers, does not show that it has read them. So now and then it is sent a random number, which it
sends back: it has read what was sent before that number.
"""

from __future__ import annotations

import secrets
from collections import Counter

# Sent to a connection, before it is asked what it has read. One that reads is hardly more behind.
PROBE_BYTES = 512 << 10
CONNECTION_BYTES = 64 << 20  # that a connection may be behind; then it is sent no items
USER_BYTES = 128 << 20  # that all connections of a user may be behind; then those that read go on


class _Connection:
    """Bytes sent to one connection, up to the number that is out and since then."""

    __slots__ = ("after", "before", "number", "user")

    def __init__(self, user: str) -> None:
        self.user = user
        self.before = 0
        self.after = 0
        self.number: int | None = None


class Backlog:
    """Bytes that ZeroMQ may hold, by connection and by user."""

    def __init__(self) -> None:
        self._connections: dict[bytes, _Connection] = {}  # by routing id
        self._users: Counter[str] = Counter()

    def sent(self, peer: bytes, user: str, size: int) -> int | None:
        """Counts bytes sent to a connection; returns a probe to send it now, if one is due."""
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection(user)
        connection.after += size
        self._users[connection.user] += size
        return self._ask(connection)

    def read(self, peer: bytes, number: int) -> int | None:
        """A connection has sent a probe back; returns the next one to send it, if one is due."""
        connection = self._connections.get(peer)
        if connection is None or connection.number != number:
            return None
        self._users[connection.user] -= connection.before
        connection.before, connection.number = 0, None
        return self._ask(connection)

    def user_of(self, peer: bytes) -> str | None:
        """A connection's user; None if it has been sent nothing."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.user

    def asked(self, peer: bytes) -> int | None:
        """The number that a connection has yet to send back."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.number

    def is_full(self, peer: bytes, user: str) -> bool:
        """Whether a connection is too far behind to get items, alone or with its user's others."""
        return self._is_behind(peer, user, 1)

    def is_hopeless(self, peer: bytes, user: str) -> bool:
        """Whether a connection is so far behind, by answers, that it is given up."""
        return self._is_behind(peer, user, 2)

    def _is_behind(self, peer: bytes, user: str, times: int) -> bool:
        behind = self.behind(peer)
        if behind > times * CONNECTION_BYTES:
            return True
        return behind > 2 * PROBE_BYTES and self._users[user] > times * USER_BYTES

    def connections(self) -> list[bytes]:
        """Connections that have been sent something."""
        return list(self._connections)

    def drop(self, peer: bytes) -> None:
        """Forgets a connection that is gone, with what ZeroMQ held for it."""
        connection = self._connections.pop(peer, None)
        if connection is None:
            return
        left = self._users[connection.user] - connection.before - connection.after
        if left:
            self._users[connection.user] = left
        else:
            del self._users[connection.user]

    def behind(self, peer: bytes) -> int:
        """Bytes that a connection has been sent and has not shown to have read."""
        connection = self._connections.get(peer)
        return 0 if connection is None else connection.before + connection.after

    @staticmethod
    def _ask(connection: _Connection) -> int | None:
        if connection.number is not None or connection.after < PROBE_BYTES:
            return None
        connection.before, connection.after = connection.after, 0
        connection.number = secrets.randbits(63)
        return connection.number
