"""A client's session with a server, kept over broken connections."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import anyio
import anyio.abc
import zmq
from zmq.utils.monitor import parse_monitor_message

from pie_py import __version__
from pie_py.client import handshake
from pie_py.client.calls import Call, Calls, Reader
from pie_py.client.errors import ClientError, ConnectionLost, RpcError, ServerUnreachable
from pie_py.config.endpoint import Endpoint
from pie_py.config.keys import ClientKey
from pie_py.wire.rpc import (
    PROTOCOL,
    SESSION_BYTES,
    Bye,
    Closed,
    Failure,
    Hello,
    Items,
    Message,
    Ping,
    Probe,
    Probed,
    Refused,
    Response,
    Welcome,
    Who,
    decode,
    encode,
)
from pie_py.wire.zmq_socket import Socket

RECONNECT_MS = 50
JOINED_FRAMES = 16  # sent at once; with more the server would wait for what it could do meanwhile
WATCHED_EVENTS = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.DISCONNECTED
    | zmq.Event.CONNECT_RETRIED
    | handshake.FAILURES
)


class Stream(Protocol):
    """Receives one instance's items."""

    def on_items(self, items: Items) -> None:
        """New items, maybe some that came before."""

    def on_resume(self, resumed: bool) -> None:
        """The connection is back; `resumed` tells whether the server knows the stream still."""

    def on_closed(self, error: ClientError) -> None:
        """No more items come."""


class Connection:
    """One session: requests with answers, streams of items, heartbeats, reconnection.

    All methods belong to the event loop that runs `run`.
    """

    def __init__(self, endpoint: Endpoint, key: ClientKey | None, patience: float) -> None:
        """Takes how many seconds to look for the server, at first and whenever it was lost.

        Raises:
            ServerUnreachable: if nothing can be connected to such an endpoint.
        """
        self.endpoint = endpoint
        self.facts: dict[str, Any] = {}  # from the server's welcome
        self.user = ""
        self._key = key
        self._patience = patience
        self._session = os.urandom(SESSION_BYTES)
        self._calls = Calls()
        self._streams: dict[str, Stream] = {}  # by instance
        self._welcome = anyio.Event()  # set while the session is open
        self._dead: ClientError | None = None
        self._first_word = anyio.Event()  # set by the first welcome or by death
        self._known = False  # whether there has been a welcome
        self._lost_at = anyio.current_time()
        self._heard = anyio.current_time()
        self._said = anyio.current_time()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._outgoing: list[bytes] = []  # frames that wait for the end of this turn of the loop
        self._flush_due = anyio.Event()
        try:
            self._open_socket()
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ServerUnreachable(
                f"{endpoint.text} cannot be connected to: {error.strerror}; give tcp://HOST:PORT with a"
                " host's name or address, or ipc://PATH"
            ) from None

    # Life

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keeps the session until cancelled."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._keep_alive)
                tasks.start_soon(self._receive)
                tasks.start_soon(self._flush_later)
                tasks.start_soon(self._monitor)
                task_status.started()
        finally:
            self._die(ConnectionLost("the client was closed"))
            if self._welcome.is_set():
                self._send_now([*self._outgoing, encode(Bye("closed"))])
            self._close_socket()
            self._context.destroy(linger=200)

    async def ready(self) -> ClientError | None:
        """Waits until the server has answered; returns why it will not."""
        await self._first_word.wait()
        return self._dead

    def _die(self, error: ClientError) -> None:
        """Nothing more comes of this connection."""
        if self._dead is not None:
            return
        self._dead = error
        self._first_word.set()
        self._lose_all(error)

    def _lose_all(self, error: ClientError) -> None:
        self._calls.fail(error)
        for stream in list(self._streams.values()):
            stream.on_closed(error)
        self._streams.clear()

    # Requests

    async def request(
        self,
        method: str,
        *,
        read: Reader | None = None,
        on_late: Callable[[Any], None] | None = None,
        **params: Any,
    ) -> Any:
        """Asks the server and waits for its answer, over reconnections too; it is done at most once.

        `read` turns the answer into what is returned, before any later message is looked at.
        Cancelled, the request may or may not have been done; `on_late` then gets what `read` made.

        Raises:
            RpcError: if the server refuses.
            ConnectionLost, ServerUnreachable: if the answer will never come.
        """
        await self._calls.room()
        if self._dead is not None:
            raise self._dead
        call = self._start(method, params, read)
        try:
            await call.done.wait()
        except BaseException:
            call.give_up(on_late)
            if on_late is None:
                self._calls.forget(call.number)
            raise
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def ask(self, method: str, *, then: Callable[[Any], None] | None = None, **params: Any) -> None:
        """Asks the server without waiting; `then` gets the value or the exception."""
        if self._dead is None:
            self._start(method, params, None).then = then

    def _start(self, method: str, params: dict[str, Any], read: Reader | None) -> Call:
        call, frame = self._calls.open(method, params, read, self.facts["frame_bytes"])
        if self._welcome.is_set():
            self._send(frame)
        return call

    def tell(self, message: Message) -> None:
        """Sends a message that needs no answer; it is lost with the connection."""
        if self._welcome.is_set() and self._dead is None:
            self._transmit(message)

    # Streams

    def open_stream(self, instance: str, stream: Stream) -> None:
        """From now on a stream is told of an instance's items."""
        self._streams[instance] = stream

    def stream(self, instance: str) -> Stream | None:
        """The stream that is told of an instance's items."""
        return self._streams.get(instance)

    def close_stream(self, instance: str) -> None:
        """The opposite."""
        self._streams.pop(instance, None)

    # Messages that arrive

    def _handle(self, message: Message) -> None:
        match message:
            case Items(instance):
                if (stream := self._streams.get(instance)) is not None:
                    stream.on_items(message)
            case Response(number, value):
                self._calls.answer(number, value)
            case Failure(number, code, text):
                self._calls.answer(number, RpcError(code, text))
            case Welcome():
                self._welcomed(message)
            case Probe(number):
                self._transmit(Probed(number))
            case Who():
                self._hello()
            case Closed(instance, code, text):
                if (stream := self._streams.pop(instance, None)) is not None:
                    stream.on_closed(RpcError(code, text))
            case Refused(code, text):
                self._die(ServerUnreachable(f"{self.endpoint.text} refuses: {text}"))
            case Bye(reason):
                self._die(ConnectionLost(f"{self.endpoint.text} has ended the session: {reason}"))

    def _hello(self) -> None:
        self._transmit(Hello(PROTOCOL, self._session, f"pie_py {__version__}"))

    def _welcomed(self, welcome: Welcome) -> None:
        self.facts = welcome.facts
        self.user = welcome.user
        if self._known and not welcome.resumed:
            # The requests may have been done or not: their callers must know.
            self._calls.fail(
                ConnectionLost(
                    f"{self.endpoint.text} has forgotten this session (was it restarted?);"
                    " ask again if that does no harm"
                )
            )
        self._known = True
        self._first_word.set()
        self._welcome.set()
        for frame in self._calls.frames():
            self._send(frame)
        for stream in list(self._streams.values()):
            stream.on_resume(welcome.resumed)

    # The socket

    def _open_socket(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, int(self.endpoint.is_ipv6))
        socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues for a connection that is not there
        socket.setsockopt(zmq.SNDHWM, 0)  # requests and windows bound what is sent
        socket.setsockopt(zmq.RCVHWM, 0)
        if self._key is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._key.server.encode())
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._key.public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._key.secret.encode())
        self._events = Socket(socket.get_monitor_socket(int(WATCHED_EVENTS)))
        socket.connect(self.endpoint.text)
        self._dealer = socket
        self._socket = Socket(socket)

    def _close_socket(self) -> None:
        self._dealer.disable_monitor()
        self._events.close()
        self._socket.close(linger=200)

    async def _receive(self) -> None:
        while True:
            for _ in range(1000):  # then other tasks have their turn
                if not self._take_one():
                    break
            await self._socket.wait()

    def _take_one(self) -> bool:
        frame = self._socket.receive()
        if frame is None:
            return False
        self._heard = anyio.current_time()
        if self._dead is not None:
            return True
        try:
            message = decode(frame)
        except ValueError as error:
            self._die(ConnectionLost(f"{self.endpoint.text} does not speak as agreed: {error}"))
        else:
            self._handle(message)
        return True

    def _transmit(self, message: Message) -> None:
        self._send(encode(message))

    def _send(self, frame: bytes) -> None:
        """Sends a frame at once, or with others of the same turn of the event loop.

        Every message costs a wakeup of ZeroMQ's thread, so requests made together go together.
        """
        self._said = anyio.current_time()
        if self._flush_due.is_set():
            self._outgoing.append(frame)
            if len(self._outgoing) == JOINED_FRAMES:
                frames, self._outgoing = self._outgoing, []
                self._send_now(frames)
        else:
            self._flush_due.set()
            self._send_now([frame])

    async def _flush_later(self) -> None:
        while True:
            await self._flush_due.wait()
            self._flush_due = anyio.Event()
            if self._outgoing:
                frames, self._outgoing = self._outgoing, []
                self._send_now(frames)

    def _send_now(self, frames: list[bytes]) -> None:
        for frame in frames:
            if self._socket.send(frame) is not None:
                return  # no connection now; what matters is sent again after the next welcome

    async def _monitor(self) -> None:
        while True:
            while (frames := self._events.receive_frames()) is not None:
                event = parse_monitor_message([frame.bytes for frame in frames])
                await self._connection_event(zmq.Event(event["event"]))
            await self._events.wait()

    async def _connection_event(self, event: zmq.Event) -> None:
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self._hello()
            return
        if event == zmq.Event.DISCONNECTED:
            self._disconnected()
        if self._known:  # a server that was there may come back as it was
            return
        reason = await handshake.diagnose(self.endpoint, self._key is not None, event)
        if reason is not None:
            self._die(ServerUnreachable(reason))

    def _disconnected(self) -> None:
        self._outgoing.clear()
        if self._welcome.is_set():
            self._welcome = anyio.Event()
            self._lost_at = anyio.current_time()

    async def _keep_alive(self) -> None:
        while True:
            interval = self.facts.get("heartbeat", 2.0)
            await anyio.sleep(min(interval, self._patience) / 4)
            now = anyio.current_time()
            if not self._welcome.is_set():
                if now - self._lost_at > self._patience:
                    self._die(self._unreachable())
                continue
            if now - self._heard > self.facts["dead"]:
                self._disconnected()
                self._hello()
            elif now - self._said > interval * 0.9 or now - self._heard > interval * 2:
                self._transmit(Ping())

    def _unreachable(self) -> ServerUnreachable:
        lost = "has not come back" if self._known else "does not answer"
        return ServerUnreachable(
            f"the server at {self.endpoint.text} {lost} within {self._patience:g} s; `pie-py serve`"
            " starts one"
        )
