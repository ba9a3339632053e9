"""The owner's side of topics and work queues: instances of other nodes at the bus of this one.

An instance elsewhere has a stand-in here, with a table of futures of its own, so that the bus
treats it as any other. Its node asks for one call at a time by `bus-call`, and for futures that
have become ready by `bus-events`. A message belongs to the bus until the instance takes it: the
take is asked for here. So nothing is delivered twice, and what a lost node had not taken goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import structlog
import trio

from pie_cluster.node.links import check_member
from pie_control.errors import ApiError, Refusal
from pie_control.instances.futures import Future, FutureKind, FutureTable
from pie_control.rpc.params import Method
from pie_control.rpc.session import Presence, Session

if TYPE_CHECKING:
    from pie_control.messaging.bus import Bus
    from pie_py.config.limits import Limits

log = structlog.get_logger("pie.cluster")

POLL_SECONDS = 1.0  # after which a node is answered though nothing has happened
SILENT_SECONDS = 10.0  # without a word of a node: it is lost
CUT_SECONDS = 3.0  # the same, once its connection has broken
LOOK_SECONDS = 0.5
STOOD_SECONDS = 2.0  # so long between two looks: this node itself stood still
MOST_EVENTS = 1000  # of one answer

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]


class JoinParams(msgspec.Struct):
    """Of `bus-join`."""

    life: Text


class CallParams(msgspec.Struct):
    """Of `bus-call`: one call of an instance."""

    member: Text
    user: Text
    call: Text
    args: list[Any]


class DropParams(msgspec.Struct):
    """Of `bus-drop`: futures that are given up; 0 for all that an instance has, which has ended."""

    given_up: list[tuple[str, int]]


class EventsParams(msgspec.Struct):
    """Of `bus-events`: nothing."""


class _StandIn:
    """An instance of another node."""

    def __init__(self, name: str, user: str, limits: Limits, clock: Callable[[], float]) -> None:
        self.id = name
        self.user = user
        self.limits = limits
        self.futures = FutureTable(limits.futures, clock, lambda kind, seconds: None)


class _Peer:
    """A node that is connected, with its instances that have called."""

    def __init__(self, life: str, now: float) -> None:
        self.life = life
        self.heard = now
        self.members: dict[str, _StandIn] = {}
        self.ready: deque[tuple[_StandIn, int]] = deque()  # futures that it does not know of
        self.wake = trio.Event()
        self.over: str | None = None  # why nothing comes of it any more

    def announce(self, member: _StandIn, handle: int) -> None:
        self.ready.append((member, handle))
        self.wake.set()


class BusHost:
    """Answers other nodes about the topics and work queues that this one owns."""

    def __init__(
        self,
        bus: Bus,
        limits: Limits,
        owns: Callable[[str], bool],
        clock: Callable[[], float],
    ) -> None:
        """No node is connected.

        Args:
            bus: with all of the users that this node owns.
            limits: of each instance.
            owns: whether this node has the topics of a user.
            clock: trio's, in seconds.
        """
        self._bus = bus
        self._limits = limits
        self._owns = owns
        self._clock = clock
        self._peers: dict[Session, _Peer] = {}
        self.methods: dict[str, Method] = {
            "bus-join": (JoinParams, self._join),
            "bus-call": (CallParams, self._call),
            "bus-drop": (DropParams, self._drop),
            "bus-events": (EventsParams, self._events),
        }

    async def run(self) -> None:
        """Looks for nodes that are lost until cancelled."""
        looked = self._clock()
        while True:
            await trio.sleep(LOOK_SECONDS)
            now = self._clock()
            stood, looked = now - looked > STOOD_SECONDS, now
            for session, peer in list(self._peers.items()):
                if stood:
                    peer.heard = now
                elif self._is_lost(session, peer, now):
                    log.warning("a node is lost to topics", life=peer.life)
                    self._end(session, "it was not heard of for too long")

    def lose_all(self, reason: str) -> None:
        """This node owns nothing any more: its peers are told."""
        for session in list(self._peers):
            self._end(session, reason)

    @staticmethod
    def _is_lost(session: Session, peer: _Peer, now: float) -> bool:
        if session.presence is Presence.ENDED:
            return True
        cut = session.presence is Presence.CUT
        return now - peer.heard > (CUT_SECONDS if cut else SILENT_SECONDS)

    def _end(self, session: Session, reason: str) -> None:
        peer = self._peers.pop(session)
        peer.over = reason
        peer.ready.clear()
        for member in list(peer.members.values()):
            self._leave(peer, member)
        peer.wake.set()

    def _leave(self, peer: _Peer, member: _StandIn) -> None:
        del peer.members[member.id]
        member.futures.close()  # what it has not taken goes back
        self._bus.leave(member)

    # Requests

    def _join(self, session: Session, asked: JoinParams) -> None:
        check_member(session)
        for other, peer in list(self._peers.items()):
            if peer.life == asked.life:
                self._end(other, "it has connected anew")
        self._peers[session] = _Peer(asked.life, self._clock())

    def _peer(self, session: Session) -> _Peer:
        peer = self._peers.get(session)
        if peer is None:
            raise Refusal("not-joined", "this session is no node's, or it was lost")
        peer.heard = self._clock()
        return peer

    def _call(self, session: Session, asked: CallParams) -> Any:
        peer = self._peer(session)
        member = peer.members.get(asked.member)
        if member is None:
            if not self._owns(asked.user):
                raise Refusal("not-owner", "this node does not have the topics of the user")
            if not asked.member.endswith(f"@{peer.life}"):
                raise Refusal("not-joined", f"{asked.member} is no instance of {peer.life}")
            member = self._stand_in(peer, asked)
        if not self._owns(member.user):
            raise Refusal("not-owner", "this node does not have the topics of the user any more")
        return _CALLS[asked.call](self._bus, member, *asked.args)

    def _stand_in(self, peer: _Peer, asked: CallParams) -> _StandIn:
        member = _StandIn(asked.member, asked.user, self._limits, self._clock)
        member.futures.announce = lambda handle: peer.announce(member, handle)
        peer.members[member.id] = member
        self._bus.join(member)
        return member

    def _drop(self, session: Session, asked: DropParams) -> None:
        peer = self._peer(session)
        for name, handle in asked.given_up:
            member = peer.members.get(name)
            if member is None:
                continue
            if not handle:
                self._leave(peer, member)
            elif member.futures.find(handle) is not None:
                member.futures.cancel(handle)

    async def _events(self, session: Session, asked: EventsParams) -> Any:
        peer = self._peer(session)
        with trio.move_on_after(POLL_SECONDS):
            await peer.wake.wait()
        if peer.over is not None:
            raise Refusal("not-joined", peer.over)
        peer.wake = trio.Event()
        told: list[tuple[str, int, Any]] = []
        while peer.ready and len(told) < MOST_EVENTS:
            member, handle = peer.ready.popleft()
            state = _state(member, handle)
            if state is not None:
                told.append((member.id, handle, state))
        if peer.ready:
            peer.wake.set()
        return told


# What an instance may call, as `api/messaging.py` does it for those of this node.


def _open(member: _StandIn, kind: FutureKind, start: Callable[[Future], None]) -> tuple[int, Any]:
    future = member.futures.create(kind)
    announce, member.futures.announce = member.futures.announce, lambda handle: None
    try:
        start(future)
    except ApiError:
        member.futures.cancel(future.handle)
        raise
    finally:
        member.futures.announce = announce
    return future.handle, _state(member, future.handle)


def _state(member: _StandIn, handle: int) -> Any:
    """What a node is told of a future: whether its message waits, its error, or nothing yet.

    Only a message may be given up and go back; of all others nothing is kept here.
    """
    future = member.futures.find(handle)
    if future is None or not future.ready:
        return None
    if future.error is None and future.kind is FutureKind.TEXT:
        return "ready"
    try:
        member.futures.take(handle, future.kind)
    except ApiError as error:
        return [error.code, error.message]
    return "done"


def _next(bus: Bus, member: _StandIn, subscription: int) -> Any:
    return _open(member, FutureKind.TEXT, lambda f: bus.next_message(member, subscription, f))


def _pull(bus: Bus, member: _StandIn, topic: str) -> Any:
    return _open(member, FutureKind.TEXT, lambda f: bus.pull(member, topic, f))


def _push_room(bus: Bus, member: _StandIn, topic: str) -> Any:
    return _open(member, FutureKind.DONE, lambda f: bus.push_room(member, topic, f))


def _broadcast_room(bus: Bus, member: _StandIn, topic: str) -> Any:
    return _open(member, FutureKind.DONE, lambda f: bus.broadcast_room(member, topic, f))


def _broadcast(bus: Bus, member: _StandIn, topic: str, message: str, size: int) -> Any:
    return bus.broadcast(member, topic, message, size)


def _push(bus: Bus, member: _StandIn, topic: str, message: str, size: int) -> Any:
    bus.push(member, topic, message, size)


def _subscribe(bus: Bus, member: _StandIn, topic: str) -> Any:
    return bus.subscribe(member, topic)


def _unsubscribe(bus: Bus, member: _StandIn, subscription: int) -> Any:
    bus.unsubscribe(member, subscription)


def _take(bus: Bus, member: _StandIn, handle: int) -> Any:
    return member.futures.take(handle, FutureKind.TEXT)


_CALLS: dict[str, Callable[..., Any]] = {
    "broadcast": _broadcast,
    "broadcast-room": _broadcast_room,
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "next-message": _next,
    "push": _push,
    "push-room": _push_room,
    "pull": _pull,
    "take": _take,
}
