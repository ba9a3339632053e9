"""What goes out to clients: frames joined by turn, to connections that read what they are sent."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from pie_control.rpc.backlog import Backlog
from pie_control.rpc.session import Session
from pie_py.wire.rpc import Pong, Probe, ToClient, encode
from pie_py.wire.zmq_socket import Socket

JOINED_FRAMES = 64  # sent at once


class Sender:
    """Sends over the server's ROUTER socket, without ever waiting."""

    def __init__(
        self,
        socket: Socket,
        cut_off: Callable[[Session], None],
    ) -> None:
        """Sends nothing yet.

        Args:
            socket: where.
            cut_off: told of a session whose connection is gone, or takes nothing.
        """
        self.backlog = Backlog()
        self._socket = socket
        self._cut_off = cut_off
        self._outgoing: dict[Session, None] = {}  # have frames to be sent

    @property
    def has_frames(self) -> bool:
        """Whether something waits for `flush`."""
        return bool(self._outgoing)

    def post(self, session: Session, message: ToClient) -> None:
        """As `transmit`, of a message."""
        self.transmit(session, encode(message))

    def transmit(self, session: Session, frame: bytes) -> None:
        """Sends to a session, with all else that goes to it this turn: a wake-up costs more than a frame."""
        if session.peer is None:
            return
        session.outgoing.append(frame)
        self._outgoing[session] = None
        if len(session.outgoing) >= JOINED_FRAMES:
            self.send_joined(session)
        else:
            self._socket.wake()

    def flush(self) -> None:
        """Sends all that waits."""
        for session in list(self._outgoing):
            self.send_joined(session)

    def send_joined(self, session: Session) -> None:
        """Sends what waits for a session. A connection that is gone or takes nothing is given up: the
        client resumes."""
        self._outgoing.pop(session, None)
        frames, session.outgoing = session.outgoing, []
        peer = session.peer
        if peer is None or not frames:
            return
        if self.backlog.is_hopeless(peer) or self._deliver(peer, frames) is not None:
            self._cut_off(session)
        else:
            self._probe(peer, self.backlog.sent(peer, session.user, sum(map(len, frames))))

    def refuse(self, peer: bytes, message: ToClient) -> None:
        """Answers a connection that has no session."""
        self._deliver(peer, [encode(message)])

    def takes_items(self, session: Session) -> bool:
        """Whether a session that has a connection may be sent items: it is not too far behind."""
        assert session.peer is not None
        return not self.backlog.is_full(session.peer, session.user)

    def probed(self, peer: bytes, number: int) -> None:
        """A connection has sent a number back."""
        self._probe(peer, self.backlog.read(peer, number))

    def greeted(self, peer: bytes) -> None:
        """A connection has said hello. It may be another than the one of this name that was probed."""
        self._probe(peer, self.backlog.asked(peer))

    def sweep(self, is_silent: Callable[[bytes], bool]) -> None:
        """Forgets connections that are not there any more: ZeroMQ has freed what it held for them.

        A number that found a full queue is sent again with that.
        """
        for peer in self.backlog.connections():
            number = self.backlog.asked(peer)
            if number is None and not is_silent(peer):
                continue
            message = Pong() if number is None else Probe(number)
            if self._deliver(peer, [encode(message)]) == zmq.EHOSTUNREACH:
                self.backlog.drop(peer)

    def _probe(self, peer: bytes, number: int | None) -> None:
        """Asks a connection what it has read, if it is time; whether it can be reached shows later."""
        if number is not None:
            self._deliver(peer, [encode(Probe(number))])

    def _deliver(self, peer: bytes, frames: list[bytes]) -> int | None:
        """Sends frames, or returns what is in the way: EHOSTUNREACH, it is gone; EAGAIN, it is full."""
        for frame in frames:
            in_the_way = self._socket.send(peer, frame)
            if in_the_way is not None:
                return in_the_way
        return None
