"""A client's session and the server's sessions, without sockets: a test carries every frame and the
time.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import trio

from pie_control.instances.instance import ClientPresence, InstanceEnded, InstanceState
from pie_control.instances.mailbox import Mailbox
from pie_control.rpc.sessions import Do, Event, Sessions, Timing
from pie_control.shares import Shares
from pie_py.client.calls import Call
from pie_py.client.session import Session as ClientSession
from pie_py.client.stream import WINDOW, Stream
from pie_py.config.limits import Quota, Quotas
from pie_py.wire.rpc import Message, Response, decode

TIMING = Timing(heartbeat=2, dead=10, resumable=120)
FACTS = {
    "heartbeat": TIMING.heartbeat,
    "dead": TIMING.dead,
    "frame_bytes": 1 << 20,
    "message_bytes": 1 << 20,
    "program_bytes": 1 << 20,
    "window_bytes": 64,
}


class Talker:
    """What the server's sessions know of an instance: it says numbers, one after the other."""

    def __init__(self, instance_id: str, mailbox_items: int = 1 << 20) -> None:
        self.id = instance_id
        self.outbox: Mailbox[Any] = Mailbox(mailbox_items, 1 << 40)
        self.parent: Talker | None = None
        self.ended: InstanceEnded | None = None
        self.ended_event = trio.Event()
        self.client = ClientPresence()
        self.durable = None
        self.first_item = 0
        self.said = 0

    def make_room(self) -> None:
        """None gives way: no client has asked for the newest alone."""

    def say(self) -> None:
        self.outbox.put(str(self.said))
        self.said += 1

    def end(self) -> None:
        self.ended = InstanceEnded(InstanceState.FINISHED, "done")
        self.outbox.put(self.ended, force=True)
        self.ended_event.set()


class Server:
    """Sessions whose requests a test answers: at once, or by `finish`.

    Methods: `now` and `later` echo their parameter `value`, `launch` and `attach` read from a
        talker.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.woken = 0
        self.sessions = Sessions(FACTS, TIMING, clock, self._wake, Shares(Quotas(Quota(), {})))
        self.talkers: dict[str, Talker] = {}
        self.done: list[Any] = []  # values of the requests that were done
        self.working: list[Do] = []
        self.events: list[Event] = []  # all that were returned

    def _wake(self) -> None:
        self.woken += 1

    def receive(self, peer: bytes, message: Message, user: str = "local") -> None:
        self.act(list(self.sessions.receive(peer, message, user)))

    def act(self, events: list[Event]) -> None:
        self.events += events
        for event in events:
            if isinstance(event, Do):
                self._do(event)

    def _do(self, event: Do) -> None:
        request = event.request
        if isinstance(request.params, msgspec.Raw):
            request.params = msgspec.msgpack.decode(request.params)
        self.done.append(request.params.get("value"))
        if request.method == "later":
            self.working.append(event)
        else:
            self.sessions.answer(event.session, Response(request.number, self._value(event)))

    def _value(self, event: Do) -> Any:
        params = event.request.params
        if event.request.method in ("now", "later"):
            return params.get("value")
        talker = self.talkers.setdefault(params["instance"], Talker(params["instance"]))
        stream = self.sessions.stream_of(talker)  # type: ignore[arg-type]
        window = params.get("window", WINDOW)
        self.sessions.read(event.session, stream, window, params.get("received"))
        return {"instance": talker.id, "first": stream.next_number, "state": "running", "text": ""}

    def finish(self, place: int = 0) -> None:
        event = self.working.pop(place)
        self.sessions.answer(event.session, Response(event.request.number, self._value(event)))

    def sent(self, peer: bytes) -> list[Message]:
        """What goes to a connection now, as if all others took what is theirs."""
        self.sessions.out.gather()
        deliveries = self.sessions.take_deliveries()
        return [decode(frame) for one in deliveries if one.peer == peer for frame in one.frames]

    def ask(self, peer: bytes, message: Message, user: str = "local") -> list[Message]:
        self.receive(peer, message, user)
        return self.sent(peer)


class World:
    """A client, a server and at most one connection between them; frames move when a test says
    so.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.server = Server(lambda: self.now)
        self.client = ClientSession(
            os.urandom(16), "the server", 1e9, lambda: self.now, lambda: None
        )
        self.peer: bytes | None = None  # the connection that there is
        self._connections = 0
        self.up: deque[bytes] = deque()  # on their way to the server
        self.down: deque[bytes] = deque()
        self.calls: list[tuple[int, Call]] = []  # with the value that each is to echo
        self.streams: dict[str, Stream] = {}
        self.read: dict[str, int] = {}  # messages read, by instance

    # The connection

    def connect(self) -> None:
        if self.peer is None:
            self._connections += 1
            self.peer = str(self._connections).encode()
            self.client.connected()

    def cut(self) -> None:
        """Breaks the connection with all that is on its way. The server learns of it when it
        sends.
        """
        self.peer = None
        self.up.clear()
        self.down.clear()
        self.client.disconnected()

    def client_sends(self) -> None:
        frames = self.client.take_outgoing()
        if self.peer is not None:
            self.up += frames

    def server_sends(self) -> None:
        self.server.sessions.out.gather()
        for delivery in self.server.sessions.take_deliveries():
            if delivery.peer == self.peer:
                self.down += delivery.frames
            else:
                self.server.sessions.undelivered(delivery, gone=True)

    def server_receives(self) -> None:
        if self.up and self.peer is not None:
            self.server.receive(self.peer, decode(self.up.popleft()))

    def client_receives(self) -> None:
        if self.down:
            self.client.receive(decode(self.down.popleft()))

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.client.tick()
        self.server.act(list(self.server.sessions.tick()))

    # The program

    def request(self, method: str) -> None:
        """Asks for an echo of a number that no other request has."""
        value = len(self.calls)
        self.calls.append((value, self.client.request(method, {"value": value})))

    def launch(self, instance: str) -> None:
        def opened(answer: dict[str, Any]) -> None:
            stream = self.streams[instance] = Stream(self.client, answer["instance"])
            self.client.open_stream(stream)

        self.client.request("launch", {"instance": instance}, opened)

    def take(self, instance: str) -> None:
        """Reads one message, which must be the one after the last."""
        stream = self.streams.get(instance)
        if stream is not None and len(stream):
            expected = self.read.get(instance, 0)
            assert stream.take() == str(expected)
            self.read[instance] = expected + 1

    def settle(self) -> None:
        """Connects, and moves all frames and messages until nothing more comes."""
        still = 0
        while still < 3:
            self.connect()
            before = self._progress()
            while self.server.working:
                self.server.finish()
            self.client_sends()
            while self.up:
                self.server_receives()
            self.server_sends()
            while self.down:
                self.client_receives()
            for instance in self.streams:
                self.take(instance)
            still = still + 1 if self._progress() == before else 0

    def _progress(self) -> Any:
        settled = sum(call.done.is_set() for _, call in self.calls)
        return settled, sum(self.read.values()), len(self.server.done), self.client.is_open
