"""Connections of clients that reach the gateway alone, each passed on to one node.

A connection whose first message is `Via` belongs to a node. What comes by it is sent to that node,
and what the node answers comes back: frames as they are, of which only the kind is looked at. So a
client's session, requests, streams and windows are the node's, as if it were connected there, and a
gateway that is killed takes nothing with it: the client connects to the next one and resumes.
Whatever goes wrong here drops the passage, which the client notices and mends in the same way.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
import trio
import zmq

from pie_control.cluster.directory_link import DirectoryLink
from pie_control.cluster.links import NodeLinks
from pie_control.errors import ApiError, Refusal
from pie_control.rpc.server import RpcServer
from pie_py.client.connection import Connection
from pie_py.client.errors import ClientError
from pie_py.config.endpoint import BadEndpoint, parse_endpoint
from pie_py.config.keys import ClientKey, KeyProblem
from pie_py.config.quotas import Quotas
from pie_py.wire.cluster import There, Where
from pie_py.wire.rpc import (
    Ack,
    Bye,
    Hello,
    HelloFor,
    NotAMessage,
    Ping,
    Probed,
    Refused,
    Request,
    Resume,
    ToClient,
    Via,
    Who,
    decode,
    encode,
)
from pie_py.wire.zmq_socket import Socket, keep_alive

log = structlog.get_logger("pie.cluster")

MOST_PASSAGES = 8192
MOST_FILES = 4 * MOST_PASSAGES  # open at once: each passage has three
TURN_FRAMES = 64  # of one node, before others have their turn
EARLY_FRAMES = 64  # that a client may send before its node is found
LOOK_SECONDS = 0.1  # between two looks whether nodes are reached
FORGET_SECONDS = 2.0  # between two looks for clients that are gone
AHEAD_BYTES = 256 << 20  # that a client may send before its node says anything


def _head(kind: type[Any]) -> bytes:
    """How frames of a kind begin: msgpack's array of some fields, and the kind's name."""
    name = str(kind.__struct_config__.tag).encode()
    return bytes([0x90 + 1 + len(kind.__struct_fields__), 0xA0 + len(name)]) + name


# What is passed on without reading it. Anything else is read first: what opens a session must not
# get through as it is, for the gateway speaks to nodes with the rights of the operator.
PASSED = tuple(_head(kind) for kind in (Request, Ack, Resume, Ping, Probed))
PASSED_KINDS = (Request, Ack, Resume, Ping, Probed, Bye)
VIA = _head(Via)
HEAD_BYTES = max(map(len, PASSED))


@dataclass(eq=False)
class Passage:
    """One client's connection and the one to its node."""

    peer: bytes  # routing id of the client's connection
    life: str  # of the node
    user: str
    heard: float  # when the client's last frame came
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    socket: Socket | None = None  # to the node, once that is found
    early: list[bytes | zmq.Frame] = field(default_factory=list)  # what waits until then
    ahead: int = 0  # bytes sent since the node has said anything


class RelayServer(RpcServer):
    """The gateway's door: it answers its own clients, and passes on what is for nodes."""

    def __init__(
        self,
        directory: DirectoryLink,
        links: NodeLinks,
        key: Callable[[str], ClientKey | None],
        clock: Callable[[], float],
        *args: Any,
        **options: Any,
    ) -> None:
        """Passes nothing before `run`.

        Args:
            directory: says where nodes are.
            links: to the nodes; tell when one is not reached any more.
            key: for a node of a public key.
            clock: trio's, in seconds.
            args, options: of an `RpcServer`.
        """
        super().__init__(*args, **options)
        self._directory = directory
        self._links = links
        self._key = key
        self._now = clock
        self._quotas = Quotas(self._config.quota, self._config.quotas)
        self._passages: dict[bytes, Passage] = {}  # by the client's routing id
        self._of_user: Counter[str] = Counter()
        self._nodes: dict[str, Connection] = {}  # by life: those that passages lead to
        self._reached: set[str] = set()
        _allow_files()
        self._to_nodes: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._to_nodes.set(zmq.MAX_SOCKETS, MOST_PASSAGES + 1)

    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled, as `RpcServer.run`."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._look)
                await super().run(task_status)
        finally:
            self._to_nodes.destroy(linger=0)

    # From clients

    def _handle(self, peer: bytes, frame: zmq.Frame, nursery: trio.Nursery) -> None:
        head = bytes(frame.buffer[:HEAD_BYTES])
        passage = self._passages.get(peer)
        user = self.user_of(frame)
        if passage is None:
            if head.startswith(VIA) and user is not None:
                self._begin(peer, frame, user, nursery)
            else:
                super()._handle(peer, frame, nursery)
            return
        if user != passage.user:
            self._end(passage)
            super()._handle(peer, frame, nursery)
        elif head.startswith(PASSED):
            self._up(passage, frame)
        else:
            self._read(passage, frame, nursery)

    def _read(self, passage: Passage, frame: zmq.Frame, nursery: trio.Nursery) -> None:
        """A client's frame that may not go on as it is."""
        try:
            message = decode(frame.buffer)
        except NotAMessage as error:
            self.sessions.receive_garbage(passage.peer, error)
            return
        match message:
            case Hello(protocol, session, client) if not isinstance(message, HelloFor):
                told = HelloFor(protocol, session, client, passage.user)
                self._up(passage, encode(told))
            case Via(life) if life != passage.life:
                self._end(passage)
                self._begin(passage.peer, frame, passage.user, nursery)
            case Via():
                pass  # it says hello again
            case _ if isinstance(message, PASSED_KINDS):
                self._up(passage, encode(message))
                if isinstance(message, Bye):
                    self._end(passage)
            case _:
                text = f"a client may not say {type(message).__name__.lower()!r} to a node"
                self._tell(passage.peer, Refused("invalid-argument", text))

    def _up(self, passage: Passage, frame: bytes | zmq.Frame) -> None:
        """Passes a frame on to the node."""
        passage.heard = self._now()
        passage.ahead += len(frame)
        if passage.ahead > AHEAD_BYTES:
            text = f"{passage.life} does not answer, and {AHEAD_BYTES >> 20} MiB wait for it"
            self._end(passage, Refused("limit-exceeded", text))
        elif passage.socket is not None:
            passage.socket.send(frame)
        elif len(passage.early) < EARLY_FRAMES:
            passage.early.append(frame)
        else:
            self._end(passage)

    # A passage

    def _begin(self, peer: bytes, frame: zmq.Frame, user: str, nursery: trio.Nursery) -> None:
        try:
            message = decode(frame.buffer)
        except NotAMessage as error:
            self.sessions.receive_garbage(peer, error)
            return
        assert isinstance(message, Via)
        most = self._quotas.most(user, MOST_PASSAGES)
        if len(self._passages) >= MOST_PASSAGES or self._of_user[user] >= most:
            text = f"{most} connections are relayed, as many as may be; use fewer, or try later"
            self._tell(peer, Refused("busy", text))
            return
        passage = self._passages[peer] = Passage(peer, message.life, user, self._now())
        self._of_user[user] += 1
        nursery.start_soon(self._pass, passage)

    async def _pass(self, passage: Passage) -> None:
        """Finds the node, and passes on what it says until the passage ends."""
        with passage.scope:
            try:
                there = await self._find(passage)
                if there is not None:
                    await self._pass_from(there, passage)
            except (zmq.ZMQError, ClientError, BadEndpoint, KeyProblem) as error:
                log.warning("a client cannot be relayed", life=passage.life, reason=str(error))
            finally:
                self._end(passage)

    async def _find(self, passage: Passage) -> There | None:
        """Where the node is; None, and the client knows why, if it serves no more."""
        try:
            answer = await self._directory.ask(partial(Where, instance=passage.life))
        except Refusal as refusal:
            lost = refusal.code == "node-lost"
            text = refusal.message
            self._tell(passage.peer, Bye(text) if lost else Refused(refusal.code, text))
            return None
        except ApiError:  # the directory does not answer; the client says hello again
            return None
        assert isinstance(answer, There)
        known = self._nodes.get(passage.life)
        if known is None or known.session.error is not None:
            node = self._links.reach(answer.endpoint, answer.public_key)
            self._nodes[passage.life] = await node
        return answer

    async def _pass_from(self, there: There, passage: Passage) -> None:
        dealer = self._dealer(there)
        socket = Socket(dealer)
        try:
            for early in passage.early:
                socket.send(early)
            passage.early.clear()
            passage.socket = socket
            while True:
                for _ in range(TURN_FRAMES):
                    frame = socket.receive()
                    if frame is None:
                        break
                    passage.ahead = 0
                    if self._socket.send(passage.peer, frame) is not None:
                        return  # the client is gone, or so far behind that it has to ask again
                await socket.wait()
        finally:
            passage.socket = None
            socket.close(linger=200)

    def _dealer(self, there: There) -> zmq.Socket[bytes]:
        dealer = self._to_nodes.socket(zmq.DEALER)
        endpoint = parse_endpoint(there.endpoint)
        dealer.setsockopt(zmq.IPV6, int(endpoint.is_ipv6))
        dealer.setsockopt(zmq.SNDHWM, 0)  # requests, windows and `AHEAD_BYTES` bound it
        dealer.setsockopt(zmq.RECONNECT_IVL, 50)
        keep_alive(dealer)
        key = self._key(there.public_key)
        if key is not None:
            dealer.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
            dealer.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
            dealer.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
        dealer.connect(endpoint.text)
        return dealer

    def _end(self, passage: Passage, last: ToClient | None = None) -> None:
        """Ends a passage; what comes by the client's connection afterwards is answered `Who`."""
        if self._passages.get(passage.peer) is passage:
            del self._passages[passage.peer]
            self._of_user[passage.user] -= 1
            if last is not None:
                self._tell(passage.peer, last)
        passage.scope.cancel()

    def _tell(self, peer: bytes, message: ToClient) -> None:
        self._socket.send(peer, encode(message))

    # Time

    async def _look(self) -> None:
        """Tells clients when their node is not reached any more, and forgets those that are gone.

        ZeroMQ does not tell of single connections, so nodes are seen by the gateway's own.
        """
        due = self._now() + FORGET_SECONDS
        while True:
            await trio.sleep(LOOK_SECONDS)
            reached = {life for life, node in self._nodes.items() if node.session.is_open}
            lost, self._reached = self._reached - reached, reached
            for passage in list(self._passages.values()) if lost else ():
                if passage.life in lost:
                    self._end(passage, Who())
            if self._now() > due:
                due = self._now() + FORGET_SECONDS
                self._forget()

    def _forget(self) -> None:
        """Ends the passages of clients that say nothing, and looks at no node without any."""
        silent = self._now() - self._timing.dead
        for passage in list(self._passages.values()):
            if passage.heard < silent:
                self._end(passage)
        self._of_user = +self._of_user
        used = {passage.life for passage in self._passages.values()}
        for life in self._nodes.keys() - used:
            del self._nodes[life]
            self._reached.discard(life)


def _allow_files() -> None:
    """Has this process open as many files as passages need, if it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
