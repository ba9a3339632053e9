"""The RPC server: one ROUTER socket, the sessions behind it, and the streams of their instances."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import structlog
import trio
import zmq

from pie_control.errors import ApiError, ProgramRejected
from pie_control.instances.instance import Instance
from pie_control.instances.launcher import MAX_ARGUMENT_BYTES
from pie_control.rpc.auth import Authenticator
from pie_control.rpc.endpoint import EndpointRefused, bind, configure, encrypt, user_of
from pie_control.rpc.outlet import MAX_WINDOW, WINDOW_BYTES, Outlet
from pie_control.rpc.params import Params
from pie_control.rpc.requests import Parts, Requests
from pie_control.rpc.sender import Sender
from pie_control.rpc.session import MAX_ANSWER_BYTES, MAX_PENDING, Pending, Session
from pie_py import __version__
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import KeyStore
from pie_py.config.server import ServerConfig
from pie_py.wire.contract import contract_version
from pie_py.wire.readiness import descriptor, has_input
from pie_py.wire.rpc import (
    CHUNK_BYTES,
    FRAME_OVERHEAD,
    LOCAL_USER,
    PROTOCOL,
    SESSION_BYTES,
    Ack,
    Bye,
    Closed,
    Failure,
    Hello,
    NotAMessage,
    Ping,
    Pong,
    Probed,
    Refused,
    Request,
    Response,
    Resume,
    Welcome,
    Who,
    decode,
    encode,
)

log = structlog.get_logger("pie.rpc")

MAX_SESSIONS = 4096
TURN_NS = 2_000_000  # of messages taken in before others have their turn


@dataclass(frozen=True, slots=True)
class Timing:
    """Intervals, in seconds."""

    heartbeat: float = 2.0  # a client that says nothing else pings this often
    dead: float = 10.0  # silence after which a client counts as gone
    kept: float = 120.0  # how long a session of a client that is gone can be resumed


class RpcServer:
    """Serves clients on one endpoint, in the calling thread's trio loop."""

    def __init__(
        self,
        config: ServerConfig,
        parts: Parts,
        timing: Timing = Timing(),
    ) -> None:
        self._config = config
        self._timing = timing
        self._requests = Requests(config, parts, self._outlet_of, self._take_from)
        self._sessions: dict[tuple[str, bytes], Session] = {}  # by user and session id
        self._peers: dict[bytes, Session] = {}  # by routing id
        self._outlets: dict[Instance, Outlet] = {}  # until the instance's record goes
        parts.registry.on_forget.append(self._drop_outlet)
        self._ready: dict[Outlet, None] = {}  # may have something to send, in order
        self._held: dict[Outlet, None] = {}  # wait until their connections have read more
        self._nursery: trio.Nursery
        self._socket: zmq.Socket[bytes]
        self._sender: Sender
        self._sleep: trio.CancelScope | None = None
        self._secure = False
        largest = max(config.limits.message_bytes, CHUNK_BYTES, MAX_ARGUMENT_BYTES)
        self._frame_bytes = largest + FRAME_OVERHEAD

    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; reports the endpoint, with the port that was bound, once it listens.

        Raises:
            EndpointInUse: if something else listens there.
            EndpointRefused: if it is reached from other machines and no user has a key, or the
                operating system does not allow it.
            BadEndpoint: if it is of no known form.
        """
        endpoint = parse_endpoint(self._config.endpoint)
        keys = KeyStore(self._config.data_folder)
        self._secure = not endpoint.is_loopback
        if self._secure and not keys.users():
            raise EndpointRefused(
                f"{endpoint.text} can be reached from other machines, and no user has a key:"
                " make one with `pie-py keys add USER`, or listen on tcp://127.0.0.1:PORT"
            )
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = context.socket(zmq.ROUTER)
        self._sender = Sender(self._socket, self._wake, self._after_send, self._cut_off)
        authenticator = Authenticator(context, keys) if self._secure else None
        try:
            configure(self._socket, endpoint, self._frame_bytes)
            if self._secure:
                encrypt(self._socket, keys.server_pair())
            bound = bind(self._socket, endpoint)
            async with trio.open_nursery() as self._nursery:
                if authenticator is not None:
                    self._nursery.start_soon(authenticator.run)
                self._nursery.start_soon(self._sweep)
                task_status.started(bound)
                log.info("listening", endpoint=bound, encrypted=self._secure)
                await self._serve()
        finally:
            with trio.CancelScope(shield=True):
                await self._leave()
            if authenticator is not None:
                authenticator.close()
            context.destroy(linger=200)

    # The loop

    async def _serve(self) -> None:
        # ZeroMQ's FD signals edges: an event that came during a send or receive shows in EVENTS only.
        fd = descriptor(self._socket)
        while True:
            self._take_in()
            self.flush()
            if self._has_work():
                await trio.lowlevel.checkpoint()
                continue
            with trio.CancelScope() as self._sleep:
                await trio.lowlevel.wait_readable(fd)
            self._sleep = None

    def _has_work(self) -> bool:
        return bool(self._ready) or self._sender.has_frames or has_input(self._socket)

    def has_requests(self) -> bool:
        """Whether clients wait at the door; if so, they are let in soon."""
        waiting = has_input(self._socket)
        if waiting:
            self._wake()  # asking has taken the edge that the sleeper waits for
        return waiting

    def _wake(self) -> None:
        if self._sleep is not None:
            self._sleep.cancel()

    def _after_send(self) -> None:
        if self._sleep is not None and has_input(self._socket):
            self._wake()  # the send has taken the edge that the sleeper waits for

    def _take_in(self) -> None:
        """Handles what has arrived, for a bounded time."""
        end = time.perf_counter_ns() + TURN_NS
        while time.perf_counter_ns() < end:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            peer = frames[0].bytes  # the connection's routing id
            for frame in frames[1:]:
                self._handle(peer, frame)

    def _handle(self, peer: bytes, frame: zmq.Frame) -> None:
        try:
            message = decode(frame.buffer)
        except NotAMessage as error:
            self._not_a_message(peer, error)
            return
        session = self._peers.get(peer)
        if isinstance(message, Probed):
            self._sender.probed(peer, message.number)
            self._let_go()
            if session is None:  # it was cut off, and has read on
                return
        if isinstance(message, Hello):
            self._hello(peer, message, user_of(frame) if self._secure else LOCAL_USER)
            return
        if session is None:
            self._sender.refuse(peer, Who())
            return
        session.heard = trio.current_time()
        if session.gone_at is not None:
            self._back(session)
        match message:
            case Request():
                self._request(session, message)
            case Ack(instance, consumed):
                if (outlet := session.streams.get(instance)) is not None:
                    self._acknowledge(session, outlet, consumed)
            case Resume(instance, received, consumed):
                if (outlet := session.streams.get(instance)) is not None:
                    outlet.resume(received, consumed)
                    self._acknowledge(session, outlet, consumed)
                else:
                    self._sender.post(session, _closed(instance))
            case Ping():
                self._sender.post(session, Pong())
            case Bye():
                self._forget(session)

    def _not_a_message(self, peer: bytes, error: NotAMessage) -> None:
        """Tells whoever sent it; a request that can be told from others fails, and no other."""
        log.debug("no message", reason=str(error))
        session = self._peers.get(peer)
        if error.request is None:
            self._sender.refuse(peer, Refused("invalid-argument", f"what it was sent is {error}"))
        elif session is None:
            self._sender.refuse(peer, Who())
        else:
            text = f"the request cannot be read: {error}; maps need keys of text"
            self._sender.post(session, Failure(error.request, "invalid-argument", text))

    # Sessions

    def _hello(self, peer: bytes, hello: Hello, user: str) -> None:
        if hello.protocol != PROTOCOL:
            self._sender.refuse(
                peer,
                Refused(
                    "unsupported",
                    f"the client speaks protocol {hello.protocol}, this server (pie_py {__version__})"
                    f" speaks {PROTOCOL}: install the same version of pie_py on both sides",
                ),
            )
            return
        if len(hello.session) != SESSION_BYTES:
            self._sender.refuse(peer, Refused("invalid-argument", "a session id has 16 bytes"))
            return
        key = (user, hello.session)
        session = self._sessions.get(key)
        resumed = session is not None
        if session is None:
            if len(self._sessions) >= MAX_SESSIONS:
                self._sender.refuse(
                    peer, Refused("busy", f"{MAX_SESSIONS} sessions are open; try later")
                )
                return
            session = Session(hello.session, user, trio.current_time(), peer)
            self._sessions[key] = session
            log.debug("session opened", user=user, client=hello.client[:100])
        # A client says hello again after its connection broke: the old one counts no more.
        if session.peer is not None:
            self._peers.pop(session.peer, None)
            session.outgoing.clear()
        previous = self._peers.get(peer)
        if previous is not None and previous is not session:
            self._gone(previous)
        session.peer = peer
        session.heard = trio.current_time()
        self._peers[peer] = session
        self._sender.post(session, Welcome(resumed, user, self._facts()))
        self._sender.greeted(peer)
        for outlet in session.streams.values():
            outlet.pause()  # until the client says what it has
        if session.gone_at is not None:
            self._back(session)

    def _facts(self) -> dict[str, Any]:
        return {
            "version": __version__,
            "contract": contract_version(),
            "heartbeat": self._timing.heartbeat,
            "dead": self._timing.dead,
            "message_bytes": self._config.limits.message_bytes,
            "program_bytes": self._config.max_program_bytes,
            "chunk_bytes": CHUNK_BYTES,
            "frame_bytes": self._frame_bytes,
            "window": MAX_WINDOW,
            "window_bytes": WINDOW_BYTES,
            "requests": MAX_PENDING,
        }

    def _back(self, session: Session) -> None:
        session.gone_at = None
        for outlet in session.streams.values():
            outlet.present()
            self._is_ready(outlet)

    def _gone(self, session: Session) -> None:
        """The client is not heard any more; it may come back."""
        if session.gone_at is not None:
            return
        session.gone_at = trio.current_time()
        for outlet in session.streams.values():
            outlet.absent()

    def _cut_off(self, session: Session) -> None:
        """A session's connection is gone or takes nothing; the client may come back with another."""
        if session.peer is not None:
            self._peers.pop(session.peer, None)
        session.peer = None
        self._gone(session)

    def _forget(self, session: Session) -> None:
        """The session ends for good, after what it has been told."""
        self._sender.send_joined(session)
        if session.peer is not None:
            self._peers.pop(session.peer, None)
        self._sessions.pop((session.user, session.id), None)
        session.close()

    async def _sweep(self) -> None:
        timing = self._timing
        while True:
            await trio.sleep(timing.dead / 5)
            now = trio.current_time()
            for session in list(self._sessions.values()):
                if now - session.heard > timing.dead:
                    self._gone(session)
                if session.gone_at is not None and now - session.gone_at > timing.kept:
                    self._forget(session)
            self._sender.sweep(self._is_silent)
            self._let_go()

    def _is_silent(self, peer: bytes) -> bool:
        """Whether a connection has no session, or one that is not heard."""
        session = self._peers.get(peer)
        return session is None or session.gone_at is not None

    async def _leave(self) -> None:
        if not self._sessions:
            return
        for session in list(self._sessions.values()):
            self._sender.post(session, Bye("the server stops"))
            self._forget(session)
        # Clients drop what they have not read when their connection closes.
        await trio.sleep(0.1)

    # Requests

    def _request(self, session: Session, request: Request) -> None:
        session.confirm(request.answered_below)
        known = session.pending.get(request.number)
        if known is not None:  # sent again after a broken connection
            if known.answer is not None:
                self._sender.transmit(session, known.answer)
                self._begin_again(session, known.opened)
            return
        if request.number <= session.highest:
            # Nobody waits for it if its answer was confirmed. If it never came before, somebody does.
            text = f"request {request.number} comes after {session.highest}; numbers begin with 1 and grow"
            self._sender.post(session, Failure(request.number, "invalid-argument", text))
            return
        session.highest = request.number
        session.pending[request.number] = Pending()
        number = request.number
        if len(session.pending) > MAX_PENDING or session.answer_bytes > MAX_ANSWER_BYTES:
            log.warning("session ended: it does not take its answers", user=session.user)
            self._sender.post(session, Bye("too many requests at once, or answers not taken"))
            self._forget(session)
            return
        method = self._requests.methods.get(request.method)
        if method is None:
            known_methods = ", ".join(self._requests.methods)
            text = f"no method {request.method[:50]!r}; there are {known_methods}"
            self._answer(session, Failure(number, "unsupported", text))
            return
        try:
            value = method(session, Params(request.method, request.params))
        except Exception as error:
            self._answer(session, _failure(number, error))
            return
        if isinstance(value, Awaitable):
            self._nursery.start_soon(self._finish, session, number, value)
        else:
            self._answer(session, Response(number, value))

    def _begin_again(self, session: Session, opened: str | None) -> None:
        """The client did not know of this stream when it came back, so it could not resume it."""
        outlet = None if opened is None else session.streams.get(opened)
        if outlet is not None:
            outlet.resume(0, 0)

    async def _finish(self, session: Session, number: int, value: Awaitable[Any]) -> None:
        scope = trio.CancelScope()
        pending = session.pending.get(number)
        if pending is None:
            scope.cancel()
        else:
            pending.scope = scope
        with scope:
            answer: Response | Failure
            try:
                answer = Response(number, await value)
            except Exception as error:
                answer = _failure(number, error)
            self._answer(session, answer)

    def _answer(self, session: Session, answer: Response | Failure) -> None:
        frame = encode(answer)
        if session.answered(answer, frame):
            self._sender.transmit(session, frame)

    # Streams

    def _drop_outlet(self, instance: Instance) -> None:
        self._outlets.pop(instance, None)

    def _outlet_of(self, instance: Instance) -> Outlet:
        outlet = self._outlets.get(instance)
        if outlet is None:
            outlet = self._outlets[instance] = Outlet(instance, self._is_ready)
        return outlet

    def _take_from(self, session: Session, instance: Instance) -> None:
        session.streams.pop(instance.id, None)
        self._sender.post(session, _closed(instance.id))

    def _acknowledge(self, session: Session, outlet: Outlet, consumed: int) -> None:
        outlet.acknowledge(consumed)
        if outlet.finished:
            session.streams.pop(outlet.instance.id, None)
            outlet.detach()

    def _is_ready(self, outlet: Outlet) -> None:
        if outlet.reader is not None:
            self._ready[outlet] = None
            self._wake()

    def flush(self) -> None:
        """Sends what waits: of every stream one message; those with more stay for the next turn."""
        ready = list(self._ready)
        self._ready.clear()
        for outlet in ready:
            session = outlet.reader
            if session is None or session.peer is None or session.gone_at is not None:
                continue
            if not self._sender.takes_items(session):
                self._held[outlet] = None
                continue
            items = outlet.take()
            if items is None:
                continue
            self._sender.transmit(session, encode(items))
            self._ready[outlet] = None
        self._sender.flush()

    def _let_go(self) -> None:
        """Those that wait until more has been read look again."""
        held, self._held = self._held, {}
        for outlet in held:
            self._is_ready(outlet)


def _closed(instance: str) -> Closed:
    return Closed(instance, "cancelled", "another client reads this instance's messages now")


def _failure(number: int, error: Exception) -> Failure:
    match error:
        case ApiError():
            return Failure(number, error.code, error.message)
        case ProgramRejected():
            return Failure(number, "program-rejected", str(error))
    log.error("a request failed", error=repr(error), exc_info=error)
    return Failure(number, "internal", f"the server failed: {type(error).__name__}; see its log")
