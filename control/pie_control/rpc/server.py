"""The RPC server: a ROUTER socket, and the tasks that carry out requests, around `Sessions`."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import structlog
import trio
import zmq

from pie_control.errors import ApiError, ProgramRejected, Refusal
from pie_control.programs.store import PROGRAM_BYTES
from pie_control.rpc.auth import ZAP_DOMAIN, Authenticator, FolderUsers, Users
from pie_control.rpc.inbox import Content, InboundMessage, Inbox
from pie_control.rpc.session import MAX_PENDING, MAX_WINDOW, WINDOW_BYTES, Session
from pie_control.rpc.sessions import DEFAULT_TIMING, Do, Event, GiveUp, Gone, Sessions, Timing
from pie_control.shares import Shares
from pie_py import __version__
from pie_py.config.endpoint import Endpoint, answers, in_use, parse_endpoint
from pie_py.config.keys import LOCAL_USER, KeyPair, KeyStore
from pie_py.config.server import ServerConfig
from pie_py.config.shipped_files import contract_version
from pie_py.wire.rpc import (
    CHUNK_BYTES,
    FRAME_OVERHEAD,
    MAX_ARGUMENT_BYTES,
    Failure,
    NotAMessage,
    Request,
    Response,
    decode,
)
from pie_py.wire.zmq_socket import Socket, keep_alive, new_router

QUEUE_MESSAGES = 2000  # to one connection that does not take them; more cut it off


class EndpointInUse(Exception):
    """Something else listens there."""


class EndpointRefused(Exception):
    """The server does not listen there as it is configured."""


def configure(socket: zmq.Socket[bytes], endpoint: Endpoint, frame_bytes: int) -> None:
    """Sets a ROUTER's options, before it listens. A larger frame breaks its connection."""
    socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes)
    # A send to a connection that is gone or full fails, rather than vanishing.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    socket.setsockopt(zmq.SNDHWM, QUEUE_MESSAGES)
    socket.setsockopt(zmq.RCVHWM, 100)
    keep_alive(socket)
    socket.setsockopt(zmq.IPV6, int(endpoint.is_ipv6))


def encrypt(socket: zmq.Socket[bytes], pair: KeyPair) -> None:
    """Lets in only clients that encrypt and whose key the authenticator knows."""
    socket.setsockopt(zmq.CURVE_SERVER, 1)
    socket.setsockopt(zmq.CURVE_SECRETKEY, pair.secret.encode())
    socket.setsockopt(zmq.CURVE_PUBLICKEY, pair.public.encode())
    socket.setsockopt(zmq.ZAP_DOMAIN, ZAP_DOMAIN)


def bind(socket: zmq.Socket[bytes], endpoint: Endpoint) -> str:
    """Listens; returns the endpoint with the port that was bound.

    Raises:
        EndpointInUse: if something else listens there.
        EndpointRefused: if the operating system does not allow it.
    """
    if endpoint.path is not None and answers(endpoint):
        raise EndpointInUse(in_use(endpoint))  # ZeroMQ would replace that server's socket silently
    try:
        socket.bind(endpoint.text)
    except zmq.ZMQError as error:
        if error.errno == zmq.EADDRINUSE:
            raise EndpointInUse(in_use(endpoint)) from None
        raise EndpointRefused(f"cannot listen on {endpoint.text}: {error.strerror}") from None
    if endpoint.path is not None:
        os.chmod(endpoint.path, 0o600)  # everyone who can write to the socket is user `local`
    bound = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(bound, bytes)
    return bound.rstrip(b"\0").decode()


log = structlog.get_logger("pie.rpc")

REMOVED = (
    "this key was removed, or its time is over; `pie-py keys add USER` on the server's machine"
    " makes another one"
)
TURN_NS = 2_000_000  # of messages handled before the guests of this process have their turn
RECEIVE_NS = 500_000  # in which messages are taken from ZeroMQ at once


class Methods(Protocol):
    """Answers requests of clients."""

    def answer(self, session: Session, request: Request) -> Any:
        """Does what a request asks; what may have to wait is returned as a coroutine."""

    def forget(self, session: Session) -> None:
        """A session has ended: what it has begun and not finished goes."""


class RpcServer:
    """Serves clients on one endpoint, in the calling thread's trio loop."""

    def __init__(
        self,
        config: ServerConfig,
        shares: Shares,
        methods: Callable[[Sessions], Methods],
        clock: Callable[[], float],
        timing: Timing = DEFAULT_TIMING,
        facts: Mapping[str, Any] = MappingProxyType({}),
        users: Users | None = None,
    ) -> None:
        """Nothing listens before `run`. `methods` makes what answers requests; `facts` are part of
        each welcome, with those of every server. Users that may connect from other machines are
        those of the data folder unless given.
        """
        self._config = config
        self._timing = timing
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = new_router(self._context)
        self._socket = Socket(self._router)
        largest = max(config.limits.message_bytes, CHUNK_BYTES, MAX_ARGUMENT_BYTES)
        self._frame_bytes = largest + FRAME_OVERHEAD
        self.sessions = Sessions(
            {**self._facts(), **facts}, timing, clock, self._socket.wake, shares
        )
        self._inbox = Inbox(shares.quotas.weight)
        self._requests = methods(self.sessions)
        self._tasks: dict[tuple[Session, int], trio.CancelScope] = {}  # of requests that wait
        self._users = users
        self._authenticator: Authenticator | None = None  # where connections are encrypted

    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; reports the endpoint, with its port, once it listens.

        Raises:
            EndpointInUse: if something else listens there.
            EndpointRefused: if it is reached from other machines and no user has a key, or the
                operating system does not allow it.
            BadEndpoint: if it is of no known form.
        """
        try:
            endpoint = parse_endpoint(self._config.endpoint).resolved()
            configure(self._router, endpoint, self._frame_bytes)
            if not endpoint.is_loopback:
                self._encrypt(endpoint)
            bound = bind(self._router, endpoint)
            async with trio.open_nursery() as nursery:
                if self._authenticator is not None:
                    nursery.start_soon(self._authenticator.run)
                nursery.start_soon(self._watch_time, nursery)
                task_status.started(bound)
                log.info("listening", endpoint=bound, encrypted=self._authenticator is not None)
                await self._serve(nursery)
        finally:
            with trio.CancelScope(shield=True):
                await self._leave()
            if self._authenticator is not None:
                self._authenticator.close()
            self._context.destroy(linger=200)

    def _encrypt(self, endpoint: Endpoint) -> None:
        keys = KeyStore(self._config.data_folder)
        if self._users is None:
            if not keys.users():
                raise EndpointRefused(
                    f"{endpoint.text} can be reached from other machines, and no user has a key:"
                    " make one with `pie-py keys add USER`, or listen on tcp://127.0.0.1:PORT"
                )
            self._users = FolderUsers(keys)
        self._authenticator = Authenticator(self._context, self._users, keys)
        encrypt(self._router, keys.server_pair())

    def _facts(self) -> dict[str, Any]:
        """The server's facts that each welcome carries."""
        return {
            "version": __version__,
            "contract": contract_version(),
            "heartbeat": self._timing.heartbeat,
            "dead": self._timing.dead,
            "message_bytes": self._config.limits.message_bytes,
            "program_bytes": PROGRAM_BYTES,
            "chunk_bytes": CHUNK_BYTES,
            "frame_bytes": self._frame_bytes,
            "window": MAX_WINDOW,
            "window_bytes": WINDOW_BYTES,
            "requests": MAX_PENDING,
        }

    # The loop

    async def _serve(self, nursery: trio.Nursery) -> None:
        while True:
            self._receive()
            began = time.perf_counter_ns()
            end = began + TURN_NS  # for which what has arrived is handled
            while self._inbox.messages and began < end and (inbound := self._inbox.take()):
                self._handle(inbound, nursery)
                self._deliver()
                now = time.perf_counter_ns()
                self._inbox.charge(inbound, now - began)
                began = now
            self.flush()
            if self.sessions.out or self._inbox.messages:
                await trio.lowlevel.checkpoint()
            else:
                await self._socket.wait()

    def has_requests(self) -> bool:
        """Sends what waits. True if messages that are not handled yet may give instances commands.

        What new instances say goes out before the worker takes the cores for their prompts.
        """
        self.flush()
        self._receive()
        if self._inbox.messages:
            self._socket.wake()  # the signal that `_serve` waits for is consumed
        return self._inbox.with_commands > 0

    def _receive(self) -> None:
        """Takes what has arrived from ZeroMQ, for a bounded time."""
        end = time.perf_counter_ns() + RECEIVE_NS
        while not self._inbox.full:
            frames = self._socket.receive_frames()
            if frames is None:
                return
            peer = frames[0].bytes  # the connection's routing id
            for frame in frames[1:]:
                self._inbox.put(self._inbound(peer, frame))
            if time.perf_counter_ns() > end:
                return

    def _inbound(self, peer: bytes, frame: zmq.Frame) -> InboundMessage:
        user, may_speak = LOCAL_USER, True
        if self._authenticator is not None:
            user, may_speak = self._authenticator.user_of(frame)
        content: Content = None
        if may_speak:
            try:
                content = decode(frame.buffer, at_server=True)
            except NotAMessage as error:
                log.debug("no message", reason=str(error))
                content = error
        return InboundMessage(user, peer, content, len(frame))

    def _handle(self, inbound: InboundMessage, nursery: trio.Nursery) -> None:
        user, peer, content, _ = inbound
        if content is None:
            self._act(self.sessions.refuse(peer, REMOVED, user), nursery)
        elif isinstance(content, NotAMessage):
            self.sessions.receive_garbage(peer, content, user)
        else:
            self._act(self.sessions.receive(peer, content, user), nursery)

    def flush(self) -> None:
        """Sends what waits: of every stream one message; those with more stay for the next turn."""
        self.sessions.out.gather()
        self._deliver()

    def _deliver(self) -> None:
        failed: set[bytes] = set()
        for delivery in self.sessions.take_deliveries():
            if delivery.peer in failed:  # nothing after a gap
                continue
            for frame in delivery.frames:
                error = self._socket.send(delivery.peer, frame)
                if error is not None:
                    failed.add(delivery.peer)
                    self.sessions.undelivered(delivery, gone=error == zmq.EHOSTUNREACH)
                    break

    async def _watch_time(self, nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(self._timing.dead / 5)
            self._act(self.sessions.tick(), nursery)
            self._deliver()

    async def _leave(self) -> None:
        if not len(self.sessions):
            return
        for event in self.sessions.end_all("the server stops"):
            self._requests.forget(event.session)
        self._deliver()
        # Clients drop what they have not read when their connection closes.
        await trio.sleep(0.1)

    # Requests

    def _act(self, events: Iterable[Event], nursery: trio.Nursery) -> None:
        for event in events:
            match event:
                case Do(session, request):
                    self._do(session, request, nursery)
                case GiveUp(session, number):
                    if (scope := self._tasks.get((session, number))) is not None:
                        scope.cancel()
                case Gone(session):
                    for (of, _), scope in self._tasks.items():
                        if of is session:
                            scope.cancel()
                    self._requests.forget(session)

    def _do(self, session: Session, request: Request, nursery: trio.Nursery) -> None:
        try:
            value = self._requests.answer(session, request)
            if isinstance(value, Awaitable):
                # Known before it runs, so that a `GiveUp` of the same turn reaches it.
                scope = self._tasks[session, request.number] = trio.CancelScope()
                nursery.start_soon(self._finish, session, request.number, value, scope)
            else:
                self.sessions.answer(session, Response(request.number, value))
        except Exception as error:  # noqa: BLE001  a fault of ours is this request's answer
            self.sessions.answer(session, _failure(request.number, error))

    async def _finish(
        self, session: Session, number: int, value: Awaitable[Any], scope: trio.CancelScope
    ) -> None:
        try:
            with scope:
                try:
                    self.sessions.answer(session, Response(number, await value))
                except Exception as error:  # noqa: BLE001  a fault of ours is this request's answer
                    self.sessions.answer(session, _failure(number, error))
        finally:
            del self._tasks[session, number]


def _failure(number: int, error: Exception) -> Failure:
    match error:
        case ApiError() | Refusal():
            return Failure(number, error.code, error.message)
        case ProgramRejected():
            return Failure(number, "program-rejected", str(error))
    log.error("a request failed", error=repr(error), exc_info=error)
    return Failure(number, "internal", f"the server failed: {type(error).__name__}; see its log")
