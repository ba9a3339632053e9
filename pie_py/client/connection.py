"""A session's connection: the socket, its monitor, and the tasks that move messages and time."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import anyio
import anyio.abc
import msgspec
import zmq
from zmq.utils.monitor import parse_monitor_message

from pie_py.client import handshake
from pie_py.client.calls import Reader
from pie_py.client.errors import ClientError, ServerUnreachable, unreadable
from pie_py.client.session import Session
from pie_py.config.endpoint import Endpoint
from pie_py.config.keys import ClientKey
from pie_py.wire.methods import Method, Value, answer_of, name_of
from pie_py.wire.rpc import SESSION_BYTES
from pie_py.wire.zmq_socket import Socket

RECONNECT_MS = 50
MOST_FRAME = 1 << 30  # bytes that a server may send at once
LINGER_MS = 200  # that a good-bye has
JOINED_FRAMES = 16  # sent at once; with more the server would wait for what it could do meanwhile
MAX_CALLS = 4000  # at once; the server allows a few more
TURN_MESSAGES = 1000  # handled before other tasks have their turn
WATCHED_EVENTS = (
    zmq.Event.CONNECTED
    | zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.DISCONNECTED
    | zmq.Event.CONNECT_RETRIED
    | handshake.FAILURES
)


class Connection:
    """Carries one session, and connects again whenever the connection breaks.

    All methods belong to the event loop that runs `run`.
    """

    def __init__(self, endpoint: Endpoint, key: ClientKey | None, patience: float) -> None:
        """Takes how many seconds to look for the server, at first and whenever it was lost. Raises
        `ServerUnreachable` if nothing can be connected to such an endpoint.
        """
        self.endpoint = endpoint
        self._has_key = key is not None
        self._patience = patience
        self._known = anyio.Event()  # whether the server will serve
        self._room = anyio.Semaphore(MAX_CALLS, fast_acquire=True)
        self._flush_due = anyio.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._dealer = _dealer(self._context, endpoint, key)
            self._events = Socket(self._dealer.get_monitor_socket(int(WATCHED_EVENTS)))
            self._dealer.connect(endpoint.text)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise ServerUnreachable(
                f"{endpoint.text} cannot be connected to: {error.strerror}; give tcp://HOST:PORT"
                " with a host's name or address, or ipc://PATH"
            ) from None
        self._socket = Socket(self._dealer)
        self.session = Session(
            os.urandom(SESSION_BYTES), endpoint.text, patience, anyio.current_time, self._on_work
        )
        self.session.on_known = self._known.set

    async def run(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keeps the session until cancelled, or until it is dead."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._receive)
                tasks.start_soon(self._flush_later)
                tasks.start_soon(self._monitor)
                task_status.started()
                while self.session.error is None:
                    await anyio.sleep(min(self.session.heartbeat, self._patience) / 4)
                    self.session.tick()
                tasks.cancel_scope.cancel()  # or it would connect again without end
        finally:
            linger = LINGER_MS if self.session.error is None else 0
            self.session.leave()
            self._flush()
            self._dealer.disable_monitor()
            self._events.close()
            self._socket.close(linger)
            self._context.destroy(linger)

    async def ready(self) -> ClientError | None:
        """Waits until the server has answered; returns why it will not."""
        await self._known.wait()
        return self.session.error

    async def request(
        self,
        method: str,
        *,
        read: Reader | None = None,
        on_late: Callable[[Any], None] | None = None,
        **params: Any,
    ) -> Any:
        """Asks the server and waits for its answer, over reconnections too; done at most once.

        `read` turns the answer into the value that is returned, before any later message is
        handled. Cancelled, the request may or may not have been done; `on_late` then gets what
        `read` made. Raises `RpcError` if the server refuses. Raises `ConnectionLost`,
        `ServerUnreachable` if the answer will never come.
        """
        async with self._room:
            call = self.session.request(method, params, read)
            try:
                await call.done.wait()
            except BaseException:
                call.give_up(on_late)
                if on_late is None:
                    self.session.calls.forget(call.number)
                raise
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    async def ask(self, asked: Method[Value]) -> Value:
        """As `request`, of a method and its parameters as the protocol declares them."""
        method = type(asked)
        value = await self.request(name_of(method), **msgspec.structs.asdict(asked))
        try:
            answer: Value = msgspec.convert(value, answer_of(method))
        except msgspec.ValidationError as error:
            raise unreadable(f"an answer to {name_of(method)}", error) from error
        return answer

    # Frames out

    def _on_work(self) -> None:
        """Sends at once, or with other frames of the same turn of the event loop.

        Every message costs a wake-up of ZeroMQ's thread, so requests made together go together.
        """
        if not self._flush_due.is_set():
            self._flush_due.set()
            self._flush()
        elif len(self.session.outgoing) >= JOINED_FRAMES:
            self._flush()

    async def _flush_later(self) -> None:
        while True:
            await self._flush_due.wait()
            self._flush_due = anyio.Event()
            self._flush()

    def _flush(self) -> None:
        for frame in self.session.take_outgoing():
            if self._socket.send(frame) is not None:
                return  # no connection now; what matters is sent again after the next welcome

    # Frames and events in

    async def _receive(self) -> None:
        while True:
            for _ in range(TURN_MESSAGES):
                frame = self._socket.receive()
                if frame is None:
                    break
                self.session.receive_frame(frame)
            await self._socket.wait()

    async def _monitor(self) -> None:
        while True:
            events = []
            while (frames := self._events.receive_frames()) is not None:
                events.append(parse_monitor_message([frame.bytes for frame in frames]))
            for event in events:
                await self._connection_event(zmq.Event(event["event"]))
            await self._events.wait()

    async def _connection_event(self, event: zmq.Event) -> None:
        if event == zmq.Event.CONNECTED:
            return
        if event == zmq.Event.HANDSHAKE_SUCCEEDED:
            self.session.connected()
            return
        if event == zmq.Event.DISCONNECTED:
            self.session.disconnected()
        if self.session.is_known:  # a server that was there may come back as it was
            return
        reason = await handshake.diagnose(self.endpoint, self._has_key, event)
        if reason is not None:
            self.session.die(ServerUnreachable(reason))


def _dealer(
    context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint, key: ClientKey | None
) -> zmq.Socket[bytes]:
    """A client's socket, not connected yet."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, int(endpoint.is_ipv6))
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    socket.setsockopt(zmq.IMMEDIATE, 1)  # nothing queues for a connection that is not there
    socket.setsockopt(zmq.SNDHWM, 0)  # the session bounds what it sends, by requests and windows
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MOST_FRAME)
    if key is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, key.server.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, key.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, key.secret.encode())
    return socket
