"""All sessions of a server: a state machine without sockets, tasks or a clock of its own.

Messages go in by `receive`, with the connection that they came by. Frames come out by
`take_deliveries`. Work that needs a task (`Do`, `GiveUp`) and sessions that are over (`Gone`) are
returned. The owner of the socket calls `undelivered` for what could not be sent, and `tick` often
enough for the time-outs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import structlog

from pie_control.instances.instance import Instance
from pie_control.rpc.outgoing import Delivery, Outgoing
from pie_control.rpc.session import ItemStream, Pending, Presence, Session
from pie_control.shares import Shares
from pie_control.tasks import take_off
from pie_py import __version__
from pie_py.wire.rpc import (
    PROTOCOL,
    SESSION_BYTES,
    Ack,
    Bye,
    Closed,
    Failure,
    Hello,
    Message,
    NotAMessage,
    Ping,
    Pong,
    Probe,
    Probed,
    Refused,
    Request,
    Response,
    Resume,
    Welcome,
    Who,
    encode,
)

log = structlog.get_logger("pie.rpc")

MAX_SESSIONS = 4096
LARGE_BYTES = 1 << 20  # of a session's answers; such a session is not resumable for long
USER_ANSWER_BYTES = 128 << 20  # of answers that a user's clients have not confirmed, all together


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals, in seconds."""

    heartbeat: float = 2.0  # a client that says nothing else pings this often
    dead: float = 10.0  # silence after which a client counts as gone
    resumable: float = 120.0  # of a session whose client is gone
    resumable_large: float = 30.0  # the same with answers of more than `LARGE_BYTES`


DEFAULT_TIMING = Timing()


@dataclass(frozen=True, slots=True)
class Do:
    """A request that is new: do it, and give the answer to `Sessions.answer`."""

    session: Session
    request: Request


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The client wants no answer any more: stop working on a request."""

    session: Session
    number: int


@dataclass(frozen=True, slots=True)
class Gone:
    """A session has ended: stop working on all its requests."""

    session: Session


Event: TypeAlias = Do | GiveUp | Gone


class Sessions:
    """The sessions by user and id, and by the connection that carries them."""

    def __init__(
        self,
        facts: dict[str, Any],
        timing: Timing,
        clock: Callable[[], float],
        on_work: Callable[[], None],
        shares: Shares,
    ) -> None:
        """No session yet. Each client's welcome has the facts; `on_work` is called when there may
        be something to send.
        """
        self.out = Outgoing(on_work)
        self.backlog = self.out.backlog
        self._facts = facts
        self._timing = timing
        self._share = shares.add("sessions", MAX_SESSIONS, self.count_of)
        self._clock = clock
        self._sessions: dict[tuple[str, bytes], Session] = {}  # by user and session id
        self._peers: dict[bytes, Session] = {}  # by routing id
        self._streams: dict[Instance, ItemStream] = {}  # until the instance's record goes
        self._answer_bytes: Counter[str] = Counter()  # by user

    def __len__(self) -> int:
        return len(self._sessions)

    def users(self) -> set[str]:
        """Users with sessions."""
        return {user for user, _ in self._sessions}

    def count_of(self, user: str) -> int:
        """Sessions of a user."""
        return sum(of_user == user for of_user, _ in self._sessions)

    @property
    def all(self) -> list[Session]:
        """Sessions that have not ended, oldest first."""
        return list(self._sessions.values())

    # Messages in

    def receive(self, peer: bytes, message: Message, user: str) -> Sequence[Event]:
        """Handles a message of a connection, by its routing id, made with a key of the user."""
        if isinstance(message, Hello):
            self._hello(peer, message, user)
            return ()
        session = self._session_of(peer, user)
        if isinstance(message, Probed):
            # Also by a connection that was cut off, and reads on: it counts for its user's others.
            self.out.probe(peer, self.backlog.read(peer, message.number))
            self.out.release_held()
            if session is None:
                return ()
        if session is None:
            self.out.deliver_one(peer, Who())
            return ()
        session.heard = self._clock()
        self._be_present(session)  # any message brings a silent client back
        match message:
            case Request():
                return self._request(session, message)
            case Ack(instance, consumed):
                if (stream := session.streams.get(instance)) is not None:
                    stream.acknowledge(consumed)
                    self._close_if_finished(session, stream)
            case Resume(instance, received, consumed):
                if (stream := session.streams.get(instance)) is not None:
                    stream.resume(received, consumed)
                    self._close_if_finished(session, stream)
                else:
                    self.out.post(session, _closed(instance))
            case Ping():
                self.out.post(session, Pong())
            case Bye():
                return [self._end(session)]
        return ()

    def receive_garbage(self, peer: bytes, error: NotAMessage, user: str) -> None:
        """Answers a frame that is no message; if it was to be a request, that fails."""
        session = self._session_of(peer, user)
        if error.request is None:
            self.out.deliver_one(peer, Refused("invalid-argument", f"what it was sent is {error}"))
        elif session is None:
            self.out.deliver_one(peer, Who())
        else:
            text = f"the request cannot be read: {error}"
            self.out.post(session, Failure(error.request, "invalid-argument", text))

    def refuse(self, peer: bytes, reason: str, user: str) -> Sequence[Event]:
        """A connection may say nothing more: its session ends."""
        session = self._session_of(peer, user)
        self.out.deliver_one(peer, Refused("permission-denied", reason))
        return () if session is None else [self._end(session)]

    def _session_of(self, peer: bytes, user: str) -> Session | None:
        """The session that a connection carries; it is never one of another user.

        A connection may claim any routing id that is free, also that of one that has just broken.
        ZeroMQ does not report that, so the first message shows it.
        """
        session = self._peers.get(peer)
        if session is not None and session.user != user:
            log.warning("a routing id was claimed", of=session.user, by=user)
            self._cut_off(session)
            session = None
        if self.backlog.user_of(peer) not in (None, user):
            self.out.connection_gone(peer)
        return session

    def _hello(self, peer: bytes, hello: Hello, user: str) -> None:
        key = (user, hello.session)
        session = self._sessions.get(key)
        refusal = self._refusal(hello, user, is_new=session is None)
        if refusal is not None:
            self.out.deliver_one(peer, refusal)
            return
        resumed = session is not None
        if session is None:
            session = self._sessions[key] = Session(hello.session, user, self._clock())
            log.debug("session opened", user=user, client=hello.client[:100])
        # The client says hello by another connection because the first one broke: what waits for
        # that one is lost, and the client asks again for all that it lacks.
        if session.peer is not None and session.peer != peer:
            self._cut_off(session)
        previous = self._session_of(peer, user)
        if previous is not None and previous is not session:
            self._cut_off(previous)
        session.peer = peer
        session.heard = self._clock()
        self._peers[peer] = session
        self.out.post(session, Welcome(resumed, user, {**self._facts, "session": session.mark}))
        # A client may name its connections itself. The probe that is out may have gone to an older
        # connection of this name, so it is sent again.
        self.out.probe(peer, self.backlog.asked(peer))
        for stream in session.streams.values():
            stream.pause()  # until the client says what it has received
        self._be_present(session)

    def _refusal(self, hello: Hello, user: str, *, is_new: bool) -> Refused | None:
        if hello.protocol != PROTOCOL:
            return Refused(
                "unsupported",
                f"the client speaks protocol {hello.protocol}, this server (pie_py {__version__})"
                f" speaks {PROTOCOL}: install the same version of pie_py on both sides",
            )
        if len(hello.session) != SESSION_BYTES:
            return Refused("invalid-argument", "a session id has 16 bytes")
        if is_new and len(self._sessions) >= MAX_SESSIONS:
            return Refused("busy", f"{MAX_SESSIONS} sessions are open; try later")
        if is_new and self._share.is_full(user):
            most = self._share.most(user)
            return Refused(
                "busy", f"you have {most} sessions, as many as one user may; use fewer connections"
            )
        return None

    # Requests

    def _request(self, session: Session, request: Request) -> Sequence[Event]:
        held = session.answer_bytes
        events: list[Event] = [
            GiveUp(session, number) for number in session.confirm(request.answered_below)
        ]
        self._answer_bytes[session.user] += session.answer_bytes - held
        known = session.pending.get(request.number)
        if known is not None:  # sent again after a broken connection: done at most once
            if known.answer is not None:
                self.out.transmit(session, known.answer)
                self._begin_again(session, known.opened)
            return events
        if request.number <= session.highest:
            # Its answer was confirmed, and then nothing waits for this one; or the client is wrong.
            text = f"request {request.number} comes after {session.highest};"
            text += " numbers begin with 1 and grow"
            self.out.post(session, Failure(request.number, "invalid-argument", text))
            return events
        session.highest = request.number
        session.pending[request.number] = Pending()
        if session.takes_no_answers or self._takes_more_than_its_part(session):
            log.warning("session ended: it does not take its answers", user=session.user)
            self.out.post(session, Bye("too many requests at once, or answers not taken"))
            events.append(self._end(session))
        else:
            events.append(Do(session, request))
        return events

    def _takes_more_than_its_part(self, session: Session) -> bool:
        """True if answers not confirmed are too many of a user, and as many of this session."""
        total = self._answer_bytes[session.user]
        if total <= USER_ANSWER_BYTES:
            return False
        return session.answer_bytes * self.count_of(session.user) >= total

    def _begin_again(self, session: Session, opened: str | None) -> None:
        """Starts a stream that the client did not know of, and so could not resume."""
        stream = None if opened is None else session.streams.get(opened)
        if stream is not None:
            stream.resume(0, 0)

    def answer(self, session: Session, answer: Response | Failure) -> None:
        """Answers a request, if its client still wants that."""
        frame = encode(answer)
        if session.answered(answer, frame):
            self._answer_bytes[session.user] += len(frame)
            self.out.transmit(session, frame)

    # Streams

    def stream_of(self, instance: Instance) -> ItemStream:
        """The stream of what an instance says."""
        stream = self._streams.get(instance)
        if stream is None:
            stream = self._streams[instance] = ItemStream(instance, self.out.add_ready)
        return stream

    def forget_instance(self, instance: Instance) -> None:
        """The record of an instance that has ended goes, and its stream with it; or it goes on at
        another node, where its reader finds it.
        """
        stream = self._streams.pop(instance, None)
        reader = None if stream is None else stream.reader
        if reader is not None and instance.durable is not None and instance.durable.journal.is_lost:
            self.stop_reading(reader, instance.id)
            self.out.post(reader, Closed(instance.id, "node-lost", "it goes on at another node"))

    def read(self, session: Session, stream: ItemStream, window: int, received: int | None) -> None:
        """Makes a session the reader of a stream, in place of the one that reads it now.

        `window` items may be sent and not acknowledged; the first that it lacks has the number
        `received`: None for all not acknowledged.
        """
        instance = stream.instance.id
        previous = stream.reader
        if previous is not None and previous is not session:
            previous.streams.pop(instance, None)
            self.out.post(previous, _closed(instance))
        session.streams[instance] = stream
        stream.attach(session, window, received)
        if not session.is_present:
            stream.absent(self._clock())

    def stop_reading(self, session: Session, instance: str) -> None:
        """A session leaves a stream, if it reads it."""
        stream = session.streams.pop(instance, None)
        if stream is not None:
            stream.detach(self._clock())

    def _close_if_finished(self, session: Session, stream: ItemStream) -> None:
        if stream.finished:
            self.stop_reading(session, stream.instance.id)

    # Presence

    def tick(self) -> Sequence[Event]:
        """Handles time-outs: call it a few times within `Timing.dead` seconds."""
        events: list[Event] = []
        now = self._clock()
        for session in self.all:
            if session.is_present and now - session.heard > self._timing.dead:
                session.become(Presence.SILENT, now)
            away = session.away_since
            if away is not None and now - away > self._resumable(session):
                events.append(self._end(session))
        self._look_at_connections()
        self.out.release_held()
        return events

    def _resumable(self, session: Session) -> float:
        """Seconds for which it can be resumed."""
        large = session.answer_bytes > LARGE_BYTES
        return self._timing.resumable_large if large else self._timing.resumable

    def end_all(self, reason: str) -> Sequence[Gone]:
        """Ends all sessions, because the server stops."""
        for session in self.all:
            self.out.post(session, Bye(reason))
        return [self._end(session) for session in self.all]

    def undelivered(self, delivery: Delivery, *, gone: bool) -> None:
        """A delivery failed: its connection is `gone`, or its queue is full."""
        if gone:
            self.backlog.drop(delivery.peer)  # ZeroMQ has freed what it held for it
        session = self._peers.get(delivery.peer)
        if session is not None and (gone or delivery.must_arrive):
            self._cut_off(session)

    def _be_present(self, session: Session) -> None:
        if not session.is_present:
            session.become(Presence.PRESENT, self._clock())
            for stream in session.streams.values():
                self.out.add_ready(stream)

    def _cut_off(self, session: Session) -> None:
        """A session loses its connection; its client may come back with another."""
        assert session.peer is not None
        del self._peers[session.peer]
        session.peer = None
        session.outgoing.clear()
        session.become(Presence.CUT, self._clock())

    def _end(self, session: Session) -> Gone:
        """A session ends for good, after what it has been sent."""
        self.out.collect(session)
        if session.peer is not None:
            del self._peers[session.peer]
            session.peer = None
        session.become(Presence.ENDED, self._clock())
        del self._sessions[session.user, session.id]
        take_off(self._answer_bytes, session.user, session.answer_bytes)
        for instance in list(session.streams):
            self.stop_reading(session, instance)
        session.pending.clear()
        return Gone(session)

    def _look_at_connections(self) -> None:
        """Sends something to each connection that may be gone, and so finds out whether it is.

        A probe that found a full queue is sent again with that.
        """
        for peer in self.backlog.connections():
            number = self.backlog.asked(peer)
            session = self._peers.get(peer)
            if number is not None:
                self.out.deliver_one(peer, Probe(number))
            elif session is None or not session.is_present:
                self.out.deliver_one(peer, Pong())

    # Frames out

    def take_deliveries(self) -> list[Delivery]:
        """Deliveries that are to be sent now, in order."""
        while self.out.hopeless:
            if (session := self.out.hopeless.pop()).peer is not None:
                self._cut_off(session)
        taken, self.out.deliveries = self.out.deliveries, []
        return taken


def _closed(instance: str) -> Closed:
    return Closed(instance, "cancelled", "another client reads this instance's messages now")
