"""Frames to clients before they are sent: joined by turn, within the bytes that may be unread.

ZeroMQ queues what connections are sent, and does not report how long its queues are. That a client
acknowledges items, or confirms answers, does not show that it has read them. So now and then it is
sent a random number, which it sends back: it has read what was sent before that number.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from pie_control.rpc.session import ItemStream, Presence, Session
from pie_control.tasks import take_off
from pie_py.wire.rpc import Probe, ToClient, encode

JOINED_FRAMES = 64  # sent to a session at once, in the middle of a turn of the loop
# Sent to a connection, before it is asked what it has read. One that reads is hardly more behind.
PROBE_BYTES = 512 << 10
CONNECTION_BYTES = 64 << 20  # that a connection may be behind; then it is sent no items
USER_BYTES = 128 << 20  # that all connections of a user may be behind; then those that read go on
# Times of these bytes, from which on a connection is sent no items, and is given up: by answers.
TO_HOLD, TO_GIVE_UP = 1, 2


class _Connection:
    """Bytes sent to one connection, up to the number that is out and since then."""

    __slots__ = ("after", "before", "number", "user")

    def __init__(self, user: str) -> None:
        self.user = user
        self.before = 0
        self.after = 0
        self.number: int | None = None


class SentBytes:
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
        if connection.number is not None or connection.after < PROBE_BYTES:
            return None
        return self._ask(connection)

    def read(self, peer: bytes, number: int) -> int | None:
        """A connection has sent a probe back; returns the next one to send it, if one is due."""
        connection = self._connections.get(peer)
        if connection is None or connection.number != number:
            return None
        self._users[connection.user] -= connection.before
        connection.before, connection.number = 0, None
        return None if connection.after < PROBE_BYTES else self._ask(connection)

    def user_of(self, peer: bytes) -> str | None:
        """A connection's user; None if it has been sent nothing."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.user

    def asked(self, peer: bytes) -> int | None:
        """The number that a connection has yet to send back."""
        connection = self._connections.get(peer)
        return None if connection is None else connection.number

    def is_behind(self, peer: bytes, user: str, times: int) -> bool:
        """True if a connection is behind by more than so many times the bytes that it may be, alone
        or with its user's others.
        """
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
        if connection is not None:
            take_off(self._users, connection.user, connection.before + connection.after)

    def behind(self, peer: bytes) -> int:
        """Bytes that a connection has been sent and has not shown to have read."""
        connection = self._connections.get(peer)
        return 0 if connection is None else connection.before + connection.after

    @staticmethod
    def _ask(connection: _Connection) -> int:
        connection.before, connection.after = connection.after, 0
        connection.number = secrets.randbits(63)
        return connection.number


@dataclass(frozen=True, slots=True)
class Delivery:
    """Frames to be sent to a connection, each as a message."""

    peer: bytes
    frames: list[bytes]
    # A session's frames are never dropped: a connection that does not take them is given up, and
    # the client resumes by another. Probes and refusals may be dropped.
    must_arrive: bool = True


class Outgoing:
    """Collects what sessions are sent, and turns it into deliveries.

    Back-pressure: a stream is not asked for items while its session's connection is too far behind
    in reading. A connection that is hopelessly behind, by answers, is to be cut off.
    """

    def __init__(self, on_work: Callable[[], None]) -> None:
        """Takes what to call when there may be something to send."""
        self.backlog = SentBytes()
        self._on_work = on_work
        self._ready: dict[ItemStream, None] = {}  # may have something to send, in order
        self._held: dict[ItemStream, None] = {}  # wait until their connections have read more
        self._sessions: dict[Session, None] = {}  # have frames that wait
        self.deliveries: list[Delivery] = []
        self.hopeless: list[Session] = []  # so far behind that their frames were dropped

    def __bool__(self) -> bool:
        """True if there may be something to send."""
        return bool(self._ready or self._sessions or self.deliveries)

    def add_ready(self, stream: ItemStream) -> None:
        """A stream may have something to send."""
        if stream.reader is not None:
            self._ready[stream] = None
            self._on_work()

    def release_held(self) -> None:
        """Connections have read more, or are gone: streams that waited for that look again."""
        held, self._held = self._held, {}
        for stream in held:
            self.add_ready(stream)

    def post(self, session: Session, message: ToClient) -> None:
        """As `transmit`, of a message."""
        self.transmit(session, encode(message))

    def transmit(self, session: Session, frame: bytes) -> None:
        """Sends to a session, with all else of this turn: waking ZeroMQ costs more than a frame."""
        if session.peer is None:
            return
        session.outgoing.append(frame)
        self._sessions[session] = None
        if len(session.outgoing) >= JOINED_FRAMES:
            self.collect(session)
        self._on_work()

    def deliver_one(self, peer: bytes, message: ToClient) -> None:
        """Sends to a connection what may be dropped."""
        self.deliveries.append(Delivery(peer, [encode(message)], must_arrive=False))

    def probe(self, peer: bytes, number: int | None) -> None:
        """Asks a connection how far it has read, if there is a number to ask with."""
        if number is not None:
            self.deliver_one(peer, Probe(number))

    def gather(self) -> None:
        """Makes deliveries of one message of every stream that has one, and of all that waits.

        A stream that has more waits for the next turn, so that a long one holds up no other.
        """
        ready, self._ready = self._ready, {}
        for stream in ready:
            session = stream.reader
            if session is None or session.peer is None:
                continue
            if session.presence is not Presence.PRESENT:
                continue
            if self.backlog.is_behind(session.peer, session.user, TO_HOLD):
                self._held[stream] = None
            elif (items := stream.take()) is not None:
                self.transmit(session, encode(items))
                self._ready[stream] = None
        for session in list(self._sessions):
            self.collect(session)

    def collect(self, session: Session) -> None:
        """Turns a session's frames into a delivery, and asks how far it has read if that is due."""
        self._sessions.pop(session, None)
        frames, session.outgoing = session.outgoing, []
        peer = session.peer
        if peer is None or not frames:
            return
        if self.backlog.is_behind(peer, session.user, TO_GIVE_UP):
            self.hopeless.append(session)
            return
        self.deliveries.append(Delivery(peer, frames))
        self.probe(peer, self.backlog.sent(peer, session.user, sum(map(len, frames))))

    def connection_gone(self, peer: bytes) -> None:
        """Drops what waits for a connection whose routing id another one has now."""
        self.deliveries = [delivery for delivery in self.deliveries if delivery.peer != peer]
        self.backlog.drop(peer)
