"""Messages to the server's door, right ones and such as are wrong in one place or many.

A frame is made in three steps: a message of the protocol with likely fields, a mutation of its
fields, a mutation of its bytes. So most frames get past the first check, and some of each get as
far as any wrong one can.
"""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
import zmq
from attacks.mutations import broken, changed, packed
from support.servers import Server

from pie_py.client.sync import Client
from pie_py.wire.rpc import (
    PROTOCOL,
    Failure,
    Hello,
    Message,
    NotAMessage,
    Probe,
    Probed,
    Welcome,
    decode,
    encode,
)

CONNECTIONS = 6
LOOK = 2000  # frames between two looks at the server
SETTLE_SECONDS = 30.0
CATCH_UP = 500  # frames until all that was sent is read
SOURCE = b"async def main(args):\n    return ' '.join(args)\n"
WAITS = b"from inferlet import session\nasync def main(args):\n    return await session.receive()\n"

ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf"),
    "", "x", "\0", "ü" * 300, "x" * 100_000, b"", b"\xff" * 16, bytes(70_000), [], {}, [[]],
    [[[[[[]]]]]], {"x": {"x": {}}}, [None] * 1000, "../../etc/passwd", "%s%n{}", {1: 2},
]  # fmt: skip
METHODS = [
    "server", "models", "programs", "instances", "stats", "quota", "usage", "has", "upload",
    "upload-chunk", "remove-program", "launch", "attach", "detach", "send", "result", "kill",
    "await-tools", "logs", "trace", "inspect", "adapters", "load-adapter", "unload-adapter",
    "mcp-servers", "register-mcp", "unregister-mcp",
]  # fmt: skip


class Talk:
    """One connection, and what is likely to be understood on it."""

    def __init__(self, socket: zmq.Socket[bytes], chance: random.Random, known: list[str]) -> None:
        """Takes a connected socket, where its chances come from, and identifiers of instances."""
        self.socket = socket
        self._chance = chance
        self._known = known
        self._sessions = [chance.randbytes(16) for _ in range(3)]
        self.session = chance.randbytes(16)  # always the same: a server has so many sessions
        self._number = 0
        self._hash = "0" * 64

    def frame(self) -> list[bytes]:
        """The next message's parts; nearly always one."""
        chance = self._chance
        fields = self._message()
        if chance.random() < 0.35:
            fields = self._wrong(fields)
        data = packed(fields)
        if chance.random() < 0.1:
            data = broken(data, chance)
        if chance.random() < 0.002:
            return [data, b"", chance.randbytes(10)]
        return [data]

    def _message(self) -> list[Any]:
        chance = self._chance
        if not self._number or chance.random() < 0.01:
            self._number += 1
            return ["hello", PROTOCOL, chance.choice(self._sessions), "a fuzzer"]
        kind = chance.choices(
            ("request", "ack", "resume", "ping", "probed", "bye"), (80, 8, 4, 4, 4, 0.1)
        )[0]
        match kind:
            case "request":
                self._number += 1
                number = max(0, self._number - chance.choice((0, 0, 0, 0, 1, 5)))
                below = max(0, number - chance.choice((0, 1, 1, 10, 100)))
                method = chance.choice(METHODS)
                return ["request", number, below, method, self._params(method)]
            case "ack":
                return ["ack", self._instance(), chance.randrange(10)]
            case "resume":
                return ["resume", self._instance(), chance.randrange(4), chance.randrange(4)]
            case "probed":
                return ["probed", chance.randrange(5)]
            case "bye":
                return ["bye", "done"]
        return ["ping"]

    def _instance(self) -> str:
        return self._chance.choice(self._known) if self._known else "x-00000000"

    def _params(self, method: str) -> dict[str, Any]:
        chance = self._chance
        match method:
            case "instances":
                return {"all": chance.random() < 0.5, "users": chance.random() < 0.5}
            case "quota" | "usage":
                return {"users": chance.random() < 0.5}
            case "has":
                return {"hash": self._hash}
            case "upload":
                self._hash = chance.randbytes(32).hex()
                return {"hash": self._hash, "name": "fuzzed", "size": chance.randrange(3000)}
            case "upload-chunk":
                data = chance.randbytes(chance.randrange(1500))
                return {"hash": self._hash, "offset": chance.choice((0, 0, 500)), "data": data}
            case "remove-program":
                return {"program": "fuzzed", "force": chance.random() < 0.5}
            case "launch" if chance.random() < 0.05:  # that is what takes long
                program = chance.choice(("waits", "ends", "ends"))
                return {"program": program, "args": ["x"], "window": chance.randrange(300)}
            case "launch":
                return {"program": "nothing", "args": ["x"] * chance.randrange(5)}
            case "attach":
                return {"instance": self._instance(), "window": 5, "received": chance.randrange(3)}
            case "send":
                return {"instance": self._instance(), "message": chance.choice(("x", b"x"))}
            case "logs" | "trace":
                return {"instance": self._instance(), "after": chance.randrange(5)}
            case "load-adapter" | "unload-adapter":
                return {"model": "pie-tiny", "name": "x", "folder": "/nowhere"}
            case "register-mcp":
                return {"name": "x", "url": "http://127.0.0.1:1/", "headers": {"a": "b"}}
            case "unregister-mcp":
                return {"name": "x"}
            case "detach" | "result" | "kill" | "inspect":
                return {"instance": self._instance()}
        return {}

    def _wrong(self, fields: list[Any]) -> list[Any]:
        """The same with something wrong: a field, a parameter, their number."""
        chance = self._chance
        at = chance.randrange(len(fields))
        match chance.randrange(6):
            case 0 | 1 if isinstance(fields[-1], dict) and fields[-1]:
                return [*fields[:-1], changed(fields[-1], chance, ODD)]
            case 2:
                return fields[:at]
            case 3:
                return [*fields, chance.choice(ODD)]
            case 4:
                return [*fields[:at], *fields[at + 1 :]]
        return [*fields[:at], chance.choice(ODD), *fields[at + 1 :]]


@dataclass
class Found:
    """What a run of the fuzzer has seen."""

    frames: int = 0
    answers: int = 0
    failures: int = 0
    wrong: tuple[str, ...] = ()  # what no client may cause
    seconds: float = 0.0
    before_mb: float = 0.0
    after_mb: float = 0.0
    files: int = 0  # more that are open than before
    slowest_ms: float = 0.0  # that another client has waited for an answer


class Fuzzer:
    """Sends frames to a server, and reads what it answers."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._chance = random.Random(seed)
        self._known: list[str] = []
        self._wrong: list[str] = []
        self.found = Found()

    def run(self, count: int) -> Found:
        """Sends so many frames; the server must answer another client all the while."""
        found, process = self.found, psutil.Process(self._server.process.pid)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        with self._server.client(patience=60.0) as other:
            other.upload(SOURCE, name="ends")
            other.upload(WAITS, name="waits")
            self._known += [other.launch("waits", detached=True).id for _ in range(3)]
            talks = [self._connect(context) for _ in range(CONNECTIONS)]
            self._send(talks, 200)  # what is allocated once
            found.before_mb, files = process.memory_info().rss / 1e6, process.num_fds()
            start = time.monotonic()
            with _Asking(other) as asking:
                while found.frames < count and not self._server.ended:
                    self._send(talks, min(LOOK, count - found.frames))
                    if self._chance.random() < 0.2:  # a client that vanishes
                        talks.pop(0).socket.close(0)
                        talks.append(self._connect(context))
            found.seconds, found.slowest_ms = time.monotonic() - start, asking.slowest_ms
            context.destroy(linger=0)
            for one in other.instances():
                other.kill(one["id"])
        if self._server.ended:
            self._wrong.append("the server has ended")
        else:
            found.after_mb = settled_mb(process, found.before_mb)
            found.files = process.num_fds() - files
        if "Traceback" in self._server.log:
            self._wrong.append("the server's log has a traceback")
        found.wrong = tuple(dict.fromkeys(self._wrong))
        return found

    def _connect(self, context: zmq.Context[zmq.Socket[bytes]]) -> Talk:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.SNDTIMEO, 30_000)
        socket.setsockopt(zmq.RCVTIMEO, 30_000)
        socket.connect(self._server.endpoint)
        return Talk(socket, self._chance, self._known)

    def _send(self, talks: list[Talk], count: int) -> None:
        for number in range(count):
            talk = self._chance.choice(talks)
            parts = talk.frame()
            try:
                talk.socket.send_multipart(parts)
            except zmq.Again:
                self._wrong.append("the server took no frame for 30 s")
                return
            self.found.frames += 1
            if number % 8 == 0:
                with suppress(zmq.Again):
                    while True:
                        self._judge(talk, talk.socket.recv(zmq.NOBLOCK))
            if number % CATCH_UP == 0:
                self._catch_up(talks)

    def _catch_up(self, talks: list[Talk]) -> None:
        """Waits until the server has read all: it answers a hello after what was said before."""
        for talk in talks:
            talk.socket.send(encode(Hello(PROTOCOL, talk.session, "a fuzzer")))
        for talk in talks:
            try:
                while not isinstance(self._judge(talk, talk.socket.recv()), Welcome):
                    pass
            except zmq.Again:
                self._wrong.append("a hello was not answered within 30 s")

    def _judge(self, talk: Talk, frame: bytes) -> Message | None:
        """Looks at what the server says, and shows that it is read: else it says no more."""
        self.found.answers += 1
        try:
            answer = decode(frame)
        except NotAMessage as error:
            self._wrong.append(f"an answer is no message: {error}")
            return None
        if isinstance(answer, Probe):
            talk.socket.send(encode(Probed(answer.number)))
        if isinstance(answer, Failure):
            self.found.failures += 1
            if answer.code == "internal":
                self._wrong.append(f"internal: {answer.message[:200]}")
        value = getattr(answer, "value", None)
        if isinstance(value, dict) and isinstance(value.get("instance"), str):
            self._known.append(value["instance"])
            del self._known[:-20]
        return answer


def settled_mb(process: psutil.Process, before_mb: float) -> float:
    """What memory a process has, once it has given back what it does not need; at most so long."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        now: float = process.memory_info().rss / 1e6
        if now < 1.1 * before_mb or time.monotonic() > deadline:
            return now
        time.sleep(0.2)


class _Asking:
    """Another client, which asks for something all the while."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.slowest_ms = 0.0

    def _ask(self) -> None:
        while not self._stopped.wait(0.05):
            start = time.monotonic()
            self._client.server_info()
            self.slowest_ms = max(self.slowest_ms, (time.monotonic() - start) * 1e3)

    def __enter__(self) -> _Asking:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
