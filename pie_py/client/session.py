"""A client's session: a state machine without sockets, tasks or a clock of its own.

Messages go in by `receive`; what the socket's monitor sees goes in by `connected` and
`disconnected`. Frames come out by `take_outgoing`. The owner calls `tick` often enough for
heartbeats and time-outs. Requests and streams outlive connections: after each welcome all requests
without an answer are sent again, and each stream says where it goes on, so that nothing is lost,
done twice or out of order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pie_py import __version__
from pie_py.client.calls import Call, Calls, Reader
from pie_py.client.errors import ClientError, ConnectionLost, RpcError, ServerUnreachable
from pie_py.client.stream import Stream
from pie_py.config.printable import printable
from pie_py.wire import rpc

DURABLE_PATIENCE = 600.0  # seconds for a server to come back that has durable instances
DEFAULT_HEARTBEAT = 2.0  # seconds, until the server tells its own


# What a welcome has to say in numbers, and how large they may be: seconds, and bytes.
_NUMBERS = {
    "heartbeat": (0.01, 3600.0),
    "dead": (0.01, 36000.0),
    "frame_bytes": (1, 1 << 40),
    "message_bytes": (1, 1 << 40),
    "program_bytes": (1, 1 << 40),
    "window_bytes": (1, 1 << 40),
}


class Session:
    """One session with a server."""

    def __init__(
        self,
        session: bytes,
        server: str,
        patience: float,
        clock: Callable[[], float],
        on_work: Callable[[], None],
    ) -> None:
        """A session of 16 random bytes that has no connection yet. The server is looked for so many
        seconds, at first and whenever it was lost; `on_work` is called when there is something to
        send.
        """
        self.facts: dict[str, Any] = {}  # from the server's welcome
        self.user = ""
        self.is_open = False  # the server has welcomed it on the connection that there is
        self.error: ClientError | None = None  # why it is dead
        self.on_known: Callable[[], None] = lambda: None  # called by the first welcome or by death
        self.calls = Calls()
        self.life: str | None = None  # of a cluster's node, that this session is with alone
        # Called with the stream of a durable instance that goes on elsewhere, and why.
        self.on_moved: Callable[[Stream, str], object] | None = None
        self._id = session
        self._server = server
        self._patience = patience
        self._clock = clock
        self._on_work = on_work
        self._streams: dict[str, Stream] = {}  # by instance
        self.outgoing: list[bytes] = []  # frames to be sent
        self.is_known = False  # the server has ever welcomed it
        self._lost_at = self._heard = self._said = clock()

    @property
    def silent_seconds(self) -> float:
        """For how long the server has said nothing; without end while there is no connection."""
        return self._clock() - self._heard if self.is_open else math.inf

    # The connection

    def connected(self) -> None:
        """A connection is made: says hello on it."""
        if self.error is None:
            self._transmit(rpc.Hello(rpc.PROTOCOL, self._id, f"pie_py {__version__}"))

    def disconnected(self) -> None:
        """The connection broke. What was to go over it is dropped: `Welcome` sends it again."""
        self.outgoing.clear()
        if self.error is not None:
            return
        if self.is_open:
            self._lost_at = self._clock()  # patience counts from the first loss
        self.is_open = False

    def die(self, error: ClientError) -> None:
        """Nothing more comes of this session: its requests and its streams end with an error."""
        if self.error is not None:
            return
        self.error = error
        self.is_open = False
        self.calls.fail(error)
        for stream in list(self._streams.values()):
            stream.close(error)
        self._streams.clear()
        self.on_known()

    def lose(self, reason: str) -> None:
        """The node of a cluster is gone: streams end, but those of durable instances."""
        for stream in list(self._streams.values()):
            self._gone(stream, reason)
        self.die(RpcError("node-lost", reason))

    def _gone(self, stream: Stream, reason: str) -> None:
        if stream.durable and self.on_moved is not None:
            del self._streams[stream.instance]
            self.on_moved(stream, reason)
        else:
            stream.finish("failed", reason)

    def leave(self) -> None:
        """The client leaves on purpose: the server need not keep the session."""
        if self.is_open:
            self._transmit(rpc.Bye("closed"))
        self.die(ConnectionLost("the client was closed"))

    def tick(self) -> None:
        """Pings, and handles time-outs: call it a few times in each heartbeat."""
        now = self._clock()
        if self.error is not None:
            return
        if not self.is_open:
            patience = self._patience
            if self._has_durable:
                patience = max(patience, DURABLE_PATIENCE)
            if now - self._lost_at > patience:
                if self._is_of_gateway:  # which its machine starts again: what waits fails
                    self._lost_at = now
                    self.calls.fail(self._unreachable())
                else:
                    self.die(self._unreachable())
            elif now - self._said > self.heartbeat:
                # The server may have dropped the welcome: the client was too far behind in reading.
                self.connected()
        elif now - self._heard > self.facts["dead"]:
            self.disconnected()
            self.connected()
        elif now - self._said > self.heartbeat * 0.9 or now - self._heard > self.heartbeat * 2:
            self._transmit(rpc.Ping())

    @property
    def _has_durable(self) -> bool:
        """True if it reads from an instance that goes on after a restart of the server."""
        return any(stream.durable for stream in self._streams.values())

    @property
    def heartbeat(self) -> float:
        """Seconds after which a client that has said nothing pings."""
        return float(self.facts.get("heartbeat", DEFAULT_HEARTBEAT))

    # Requests

    def request(self, method: str, params: dict[str, Any], read: Reader | None = None) -> Call:
        """Opens a request, which is done at most once however often the connection breaks. Raises
        `RpcError`: `invalid-argument`, `limit-exceeded` if it cannot be sent. Raises `ClientError`:
        the session is dead.
        """
        if self.error is not None:
            raise self.error
        call, frame = self.calls.open(method, params, read, self.facts["frame_bytes"])
        if self.is_open:
            self._send(frame)
        return call

    def tell(self, message: rpc.Message) -> None:
        """Sends a message that needs no answer; it is lost with the connection."""
        if self.is_open:
            self._transmit(message)

    # Streams

    def open_stream(self, stream: Stream) -> None:
        """From now on a stream gets the items of its instance."""
        self._streams[stream.instance] = stream

    def close_stream(self, instance: str) -> None:
        """From now on no stream gets an instance's items."""
        self._streams.pop(instance, None)

    # Messages in

    def receive_frame(self, frame: bytes | memoryview) -> None:
        """Handles a message's frame; whatever else it is ends the session by a named error."""
        try:
            self.receive(rpc.decode(frame))
        except Exception as error:  # noqa: BLE001  a hostile frame ends its session
            problem = ConnectionLost(f"{self._server} does not speak as agreed: {printable(error)}")
            problem.__cause__ = error
            self.die(problem)

    def receive(self, message: rpc.Message) -> None:
        """Handles a message. Raises `Exception`: of any kind, if it has not what it should."""
        self._heard = self._clock()
        if self.error is not None:
            return
        match message:
            case rpc.Items(instance):
                if (stream := self._streams.get(instance)) is not None:
                    stream.receive(message)
            case rpc.Response(number, value):
                self.calls.answer(number, value)
            case rpc.Failure(number, code, text):
                self.calls.answer(number, RpcError(code, text))
            case rpc.Welcome():
                self._welcomed(message)
            case rpc.Probe(number):
                self._transmit(rpc.Probed(number))
            case rpc.Who():
                # The server would take what comes before its welcome for a new session's.
                self.disconnected()
                self.connected()
            case rpc.Closed(instance, "node-lost", text):
                if (stream := self._streams.get(instance)) is not None:
                    self._gone(stream, f"node-lost: {text}")
            case rpc.Closed(instance, code, text):
                if (stream := self._streams.pop(instance, None)) is not None:
                    stream.close(RpcError(code, text))
            case rpc.Refused(code, text):
                self.die(ServerUnreachable(f"{self._server} refuses: {text}"))
            case rpc.Bye(reason) if self.life is not None:
                self.lose(f"node-lost: node {self.life} has ended: {reason}")
            case rpc.Bye() if self._has_durable or self._is_of_gateway:
                self.disconnected()  # there is another server soon
            case rpc.Bye(reason):
                self.die(ConnectionLost(f"{self._server} has ended the session: {reason}"))
            case rpc.Pong():
                pass
            case _:
                raise ValueError(f"a server says {type(message).__name__}")

    def _welcomed(self, welcome: rpc.Welcome) -> None:
        for name, (least, most) in _NUMBERS.items():
            value = welcome.facts.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"a welcome's {name!r} is no number")
            if not least <= value <= most:
                raise ValueError(f"a welcome's {name!r} is {value!r:.100}")
        life = welcome.facts.get("life")
        if self.life not in (None, life):  # a later life, that listens at the same address
            self.lose(f"node-lost: node {self.life} has ended; {life} has begun")
            return
        # Not `resumed` alone: the welcome that said false may have been lost with its connection.
        resumed = welcome.resumed and welcome.facts.get("session") == self.facts.get("session")
        self.facts = welcome.facts
        self.user = welcome.user
        if self.is_known and not resumed:
            # The requests may have been done or not, so they are not sent again.
            self.calls.fail(
                ConnectionLost(
                    f"{self._server} has forgotten this session (was it restarted?);"
                    " ask again if that does no harm"
                )
            )
        self.is_open = True
        for frame in self.calls.frames():
            self._send(frame)
        for stream in list(self._streams.values()):
            stream.resume(same_session=resumed)
        if not self.is_known:
            self.is_known = True
            self.on_known()

    # Frames out

    def take_outgoing(self) -> list[bytes]:
        """The frames to be sent now, in order."""
        taken, self.outgoing = self.outgoing, []
        return taken

    def _transmit(self, message: rpc.Message) -> None:
        self._send(rpc.encode(message))

    def _send(self, frame: bytes) -> None:
        self._said = self._clock()
        self.outgoing.append(frame)
        self._on_work()

    @property
    def _is_of_gateway(self) -> bool:
        """True if it is with a cluster's gateway: instances and streams are at its nodes."""
        return bool(self.facts.get("cluster"))

    def _unreachable(self) -> ServerUnreachable:
        if self._is_of_gateway:
            return ServerUnreachable(
                f"the cluster's gateway at {self._server} has not come back within"
                f" {self._patience:g} s; `pie-py cluster up` on its head starts it again"
            )
        lost = "has not come back" if self.is_known else "does not answer"
        return ServerUnreachable(
            f"the server at {self._server} {lost} within {self._patience:g} s; `pie-py serve`"
            " starts one"
        )
