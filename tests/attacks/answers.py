"""What a hostile server says to clients, right in most places and wrong in one or many.

Frames go into sessions of the client, which have requests and streams open; and a real server of
ZeroMQ answers the command line so. Whatever comes, a caller gets an answer or a named error, in
time, and no control character reaches a terminal.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import zmq
from attacks.frames import ODD
from attacks.mutations import broken, changed, packed
from click.testing import CliRunner

from pie_py.cli import main
from pie_py.client.errors import ClientError
from pie_py.client.session import Session
from pie_py.client.stream import Stream
from pie_py.config.printable import printable
from pie_py.wire.rpc import NotAMessage, decode

EACH = 12  # frames, about, that a session gets before the next one
LONGEST_SECONDS = 10.0  # of a command, on a machine that is busy with others
INSTANCES = ("one-00000000", "two-00000000", "x")
COMMANDS = (
    "ps --all", "ps --json", "models --json", "programs", "programs --json", "quota",
    "logs one-00000000", "logs --json one-00000000", "trace one-00000000",
    "top --once --interval 0.2",
    "top --json", "kill one-00000000 x", "attach one-00000000", "launch one x", "send x hello",
    "adapters list", "mcp list", "status",
)  # fmt: skip
_FACTS = {
    "version": "1", "contract": "0.1.0", "heartbeat": 2.0, "dead": 10.0, "message_bytes": 1 << 20,
    "program_bytes": 1 << 20, "chunk_bytes": 1 << 20, "frame_bytes": 1 << 20, "window": 256,
    "window_bytes": 1 << 20, "requests": 100,
}  # fmt: skip
_INSTANCE = {
    "id": "one-00000000", "instance": "one-00000000", "program": "one", "hash": "ab" * 32,
    "user": "ann", "state": "running", "text": "done", "first": 0, "created_ns": 1,
    "ended_ns": None,
    "cpu_ms": 1.5, "generated_tokens": 3, "most_pages": 2, "pages": 1, "attached": True,
    "args": ["x"], "waits": ["time"], "reason": None, "name": "one", "size": 10, "kind": "python",
    "uploaded_ns": 1, "traits": ["forward"], "model": "m", "own": True, "at": "http://x",
}  # fmt: skip
_KINDS = {
    "response": 50, "failure": 5, "items": 30, "closed": 2, "welcome": 3, "who": 1, "probe": 2,
    "pong": 2, "bye": 0.3, "refused": 0.3, "hello": 0.2, "ping": 0.2,
}  # fmt: skip
_LINE = {"time_ns": 1, "level": "info", "text": "hello"}
_SPAN = {"track": "wait", "name": "x", "begin_ns": 1, "end_ns": 2, "size": 1, "device_ns": 1}
_VALUES: list[Any] = [
    None, True, {}, [], [_INSTANCE], [_INSTANCE, _INSTANCE], _INSTANCE,
    {"lines": [_LINE], "next": 1, "total": 1, "ended": True},
    {"spans": [_SPAN], "next": 1, "open": _SPAN, "program": "p", "begun_ns": 1, "ended_ns": 5},
    {"version": "1", "uptime": 1.0, "instances": 1, "max_instances": 9, "launched": 1, "doing": []},
    {"m": {"kv_pages": 1, "kv_pages_free": 1, "prefix_pages": 1, "host_pages": 0, "queued": 1,
           "host_pages_free": 0, "generated_tokens": 1, "worker_ns": 1}},
]  # fmt: skip
_HOSTILE = ["\x1b[2J\x1b]0;owned\a", "\x9b31m", "\u202egnp.exe", "[red]x[/red]", "\r\n\r\n", *ODD]


class Answers:
    """Frames of a server, one after another."""

    def __init__(self, chance: random.Random) -> None:
        """Takes where its chances come from."""
        self._chance = chance

    def frame(self, number: int, sound: float = 0.5) -> bytes:
        """A frame, perhaps an answer to the request of this number; some are as they should be."""
        fields = self._message(number)
        if self._chance.random() > sound:
            fields = changed(fields, self._chance, _HOSTILE)
        data = packed(fields)
        return broken(data, self._chance) if self._chance.random() < 0.1 else data

    def welcome(self) -> bytes:
        """One that is as it should be."""
        return packed(["welcome", False, "ann", _FACTS])

    def value(self) -> Any:
        """What a method may answer, or something like it."""
        value = self._chance.choice(_VALUES)
        return changed(value, self._chance, _HOSTILE) if self._chance.random() < 0.5 else value

    def _message(self, number: int) -> list[Any]:
        chance = self._chance
        instance = chance.choice(INSTANCES)
        match kind := chance.choices(list(_KINDS), list(_KINDS.values()))[0]:
            case "response":
                return [kind, number, self.value()]
            case "failure":
                return [kind, number, "not-found", chance.choice(_HOSTILE)]
            case "items":
                return [kind, instance, chance.choice((0, 0, 1, 5, 2**62)), self._items()]
            case "closed":
                return [kind, instance, "replaced", "another reads"]
            case "welcome":
                return [kind, chance.random() < 0.5, "ann", dict(_FACTS)]
            case "probe":
                return [kind, chance.randrange(9)]
            case "bye" | "refused":
                return [kind, "x"] if kind == "bye" else [kind, "busy", "x"]
            case "hello":
                return [kind, 2, b"x" * 16, "x"]
        return [kind]

    def _items(self) -> list[Any]:
        chance = self._chance
        found: list[Any] = [
            chance.choice(("x", b"y", *_HOSTILE[:5])) for _ in range(chance.randrange(4))
        ]
        if chance.random() < 0.2:
            found.append([chance.choice(("finished", "failed", "x")), chance.choice(_HOSTILE[:5])])
        return found


class Clock:
    """Seconds, which pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@dataclass
class Found:
    """What a run has seen."""

    frames: int = 0
    malformed: int = 0
    commands: int = 0
    errors: int = 0  # named ones
    slowest: float = 0.0  # seconds of a command
    wrong: list[str] = field(default_factory=list)


def to_sessions(count: int, seed: int, found: Found) -> None:
    """Feeds frames to sessions that have requests and streams open."""
    chance = random.Random(seed)
    answers = Answers(chance)
    while found.frames < count and len(found.wrong) < 20:
        clock = Clock()
        session = Session(b"x" * 16, "tcp://127.0.0.1:1", 10.0, clock, lambda: None)
        session.connected()
        session.receive_frame(answers.welcome())
        calls = [
            session.request("launch", {}, lambda answer: answer["instance"] + answer["program"]),
            session.request("stats", {}),
        ]
        streams = [Stream(session, instance) for instance in INSTANCES[:2]]
        streams[1].set_eager(True)
        for stream in streams:
            session.open_stream(stream)
        for _ in range(chance.randrange(1, 2 * EACH)):
            frame = answers.frame(chance.randrange(1, 4), 0.7)
            found.frames += 1
            found.malformed += _is_malformed(frame)
            try:
                session.receive_frame(frame)
                clock.now += chance.choice((0.0, 0.5, 3.0, 11.0))
                session.tick()
                session.take_outgoing()
                while len(streams[0]) and chance.random() < 0.5:
                    streams[0].take()
            except BaseException as error:
                found.wrong.append(f"{type(error).__name__}: {error!s:.100} at {frame[:200]!r}")
                break
            if session.error is not None:
                break
        found.errors += session.error is not None
        session.leave()
        if not all(call.done.is_set() for call in calls):
            found.wrong.append("a request waits for ever")
        if any(stream.ended is None and stream.error is None for stream in streams):
            found.wrong.append("a stream does not end")
        for call in calls:
            if isinstance(call.answer, BaseException) and not isinstance(call.answer, ClientError):
                found.wrong.append(f"a request gets {call.answer!r:.200}")


def _is_malformed(frame: bytes) -> bool:
    try:
        decode(frame)
    except NotAMessage:
        return True
    return False


class HostileServer:
    """Listens, and answers each request by what chance says."""

    def __init__(self, folder: Path, seed: int) -> None:
        """Takes an empty folder, and where its chances begin."""
        self.endpoint = f"ipc://{folder}/door"
        self._answers = Answers(random.Random(seed))
        self._chance = random.Random(seed + 1)
        self._stopped = threading.Event()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(self.endpoint)
        self._thread = threading.Thread(target=self._run)
        self.frames = 0

    def _run(self) -> None:
        while not self._stopped.is_set():
            if not self._socket.poll(50):
                continue
            peer, *parts = self._socket.recv_multipart()
            try:
                asked: Any = msgpack.unpackb(parts[-1])
            except ValueError:
                continue
            for frame in self._said(asked):
                self.frames += 1
                self._socket.send_multipart([peer, frame])

    def _said(self, asked: Any) -> Iterator[bytes]:
        match asked:
            case ["hello", *_]:
                sound = self._chance.random() < 0.9
                yield self._answers.welcome() if sound else self._answers.frame(1, 0.0)
            case ["request", number, *_]:
                for _ in range(self._chance.randrange(3)):
                    yield self._answers.frame(number, 0.6)
                # One that says nothing at all is no fault of the client: it waits as it should.
                yield packed(["response", number, self._answers.value()])
                ends = ["items", INSTANCES[0], 0, ["\x1b[2Jx", ["finished", "\x9b0c"]]]
                yield packed(ends)
            case ["ping"]:
                yield packed(["pong"])

    @contextmanager
    def running(self) -> Iterator[HostileServer]:
        """Answers within the context."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join()
            self._context.destroy(linger=0)


def to_commands(count: int, seed: int, found: Found) -> None:
    """Runs commands against such a server."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        server = HostileServer(Path(name), seed)
        with server.running():
            for _ in range(count):
                line = chance.choice(COMMANDS)
                _run(line, server.endpoint, found)
        found.frames += server.frames


def _run(line: str, endpoint: str, found: Found) -> None:
    started = time.monotonic()
    result = CliRunner().invoke(main, [*line.split(), "--endpoint", endpoint], input="")
    took = time.monotonic() - started
    found.commands += 1
    found.slowest = max(found.slowest, took)
    found.errors += result.exit_code == 1
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        found.wrong.append(f"{line}: {result.exception!r:.200}")
    if took > LONGEST_SECONDS:
        found.wrong.append(f"{line}: {took:.0f} s")
    # Standard output of `attach` and `launch` is an answer, and no terminal.
    text = result.stderr if line.startswith(("attach", "launch")) else result.output
    if text != printable(text, None, lines=True):
        found.wrong.append(f"{line}: prints control characters: {text!r:.300}")
