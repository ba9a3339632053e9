"""Messages between a client and the server; `docs/protocol.md` tells how they are used.

A message is one ZeroMQ frame, a msgpack array whose first element names its kind. Several frames may
travel as one ZeroMQ message.
"""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgpack

PROTOCOL = 2  # grows with every incompatible change
SESSION_BYTES = 16
CHUNK_BYTES = 1 << 20  # of a program, in one message
FRAME_OVERHEAD = 64 << 10  # room for what surrounds the largest message in a frame


@dataclass(slots=True)
class Ended:
    """Last item of an instance's stream."""

    state: str  # "finished", "failed" or "killed"
    text: str  # the result, or why it ended otherwise


Item: TypeAlias = str | bytes | Ended


# Client to server


@dataclass(slots=True)
class Hello:
    """First message of every connection: opens a session or resumes it."""

    protocol: int
    session: bytes  # 16 random bytes, chosen by the client
    client: str  # name and version, for the server's log


@dataclass(slots=True)
class Request:
    """Asks for something. Sent again under the same number, it is not done again."""

    number: int  # grows with every request of a session
    answered_below: int  # all lower numbers have been answered, or given up
    method: str
    params: dict[str, Any]


@dataclass(slots=True)
class Ack:
    """The client has consumed an instance's items below a number."""

    instance: str
    consumed: int


@dataclass(slots=True)
class Resume:
    """After a resumed session: go on with an instance's stream, from item number `received` on."""

    instance: str
    received: int
    consumed: int


@dataclass(slots=True)
class Ping:
    """Says that the client lives; the server answers with `Pong`."""


@dataclass(slots=True)
class Probed:
    """Answer to `Probe`."""

    number: int


# Server to client


@dataclass(slots=True)
class Welcome:
    """Answer to `Hello`."""

    resumed: bool  # whether the session was known, with its requests and streams
    user: str
    facts: dict[str, Any]  # versions, limits and intervals, see docs/protocol.md


@dataclass(slots=True)
class Refused:
    """Answer to a `Hello` that the server cannot serve, or to what is no message."""

    code: str
    message: str


@dataclass(slots=True)
class Who:
    """The server does not know this connection: say hello."""


@dataclass(slots=True)
class Response:
    """A request's value."""

    number: int
    value: Any


@dataclass(slots=True)
class Failure:
    """A request's error."""

    number: int
    code: str
    message: str


@dataclass(slots=True)
class Items:
    """Consecutive items of an instance's stream."""

    instance: str
    first: int  # number of the first item
    items: list[Item]


@dataclass(slots=True)
class Closed:
    """An instance's stream goes on without this session."""

    instance: str
    code: str
    message: str


@dataclass(slots=True)
class Pong:
    """Answer to `Ping`."""


@dataclass(slots=True)
class Probe:
    """Asks for its number back, at once: then all that was sent before has been read."""

    number: int


# Both ways


@dataclass(slots=True)
class Bye:
    """The sender leaves on purpose."""

    reason: str


ToServer: TypeAlias = Hello | Request | Ack | Resume | Ping | Probed | Bye
ToClient: TypeAlias = (
    Welcome | Refused | Who | Response | Failure | Items | Closed | Pong | Probe | Bye
)
Message: TypeAlias = ToServer | ToClient


def encode(message: Message) -> bytes:
    """Turns a message into the bytes of its frame."""
    packed: bytes = msgpack.packb(_fields(message))
    return packed


def _fields(message: Message) -> tuple[Any, ...]:
    match message:
        case Request(number, answered_below, method, params):
            return "request", number, answered_below, method, params
        case Response(number, value):
            return "response", number, value
        case Items(instance, first, items):
            plain = [(i.state, i.text) if isinstance(i, Ended) else i for i in items]
            return "items", instance, first, plain
        case Ack(instance, consumed):
            return "ack", instance, consumed
        case Failure(number, code, text):
            return "failure", number, code, text
        case Ping():
            return ("ping",)
        case Pong():
            return ("pong",)
        case Probe(number):
            return "probe", number
        case Probed(number):
            return "probed", number
        case Hello(protocol, session, client):
            return "hello", protocol, session, client
        case Welcome(resumed, user, facts):
            return "welcome", resumed, user, facts
        case Refused(code, text):
            return "refused", code, text
        case Who():
            return ("who",)
        case Resume(instance, received, consumed):
            return "resume", instance, received, consumed
        case Closed(instance, code, text):
            return "closed", instance, code, text
        case Bye(reason):
            return "bye", reason


class NotAMessage(ValueError):
    """Bytes that are no message of this protocol."""

    def __init__(self, text: str, request: int | None) -> None:
        super().__init__(text)
        self.request = request  # number of the request that it was to be, if that can be read


def decode(frame: bytes | memoryview) -> Message:
    """Reads a message back.

    Raises:
        NotAMessage: if the bytes are not a message of this protocol. Nothing else, whatever they are.
    """
    try:
        fields = msgpack.unpackb(frame, strict_map_key=True)
    except Exception as error:  # msgpack has several, and a hostile frame may find others
        raise NotAMessage(f"not msgpack: {error}", _request_number(frame)) from None
    message = _message(fields) if isinstance(fields, list) else None
    if message is None:
        raise NotAMessage(
            f"not a message of protocol {PROTOCOL}: {reprlib.repr(fields)}", _request_number(frame)
        )
    return message


_REQUEST_HEAD_BYTES = 24  # at most, up to its number


def _request_number(frame: bytes | memoryview) -> int | None:
    """The number of a request whose rest cannot be read, so that it can be answered."""
    head = msgpack.Unpacker()
    head.feed(bytes(frame[:_REQUEST_HEAD_BYTES]))
    try:
        head.read_array_header()
        kind, number = head.unpack(), head.unpack()
    except Exception:
        return None
    return number if kind == "request" and type(number) is int else None


def _message(fields: list[Any]) -> Message | None:
    match fields:
        case ["request", int(number), int(below), str(method), dict(params)]:
            return Request(number, below, method, params)
        case ["response", int(number), value]:
            return Response(number, value)
        case ["items", str(instance), int(first), list(plain)]:
            items = [_item(i) for i in plain]
            return None if None in items else Items(instance, first, items)  # type: ignore[arg-type]
        case ["ack", str(instance), int(consumed)]:
            return Ack(instance, consumed)
        case ["failure", int(number), str(code), str(text)]:
            return Failure(number, code, text)
        case ["ping"]:
            return Ping()
        case ["pong"]:
            return Pong()
        case ["probe", int(number)]:
            return Probe(number)
        case ["probed", int(number)]:
            return Probed(number)
        case ["hello", int(protocol), bytes(session), str(client)]:
            return Hello(protocol, session, client)
        case ["welcome", bool(resumed), str(user), dict(facts)]:
            return Welcome(resumed, user, facts)
        case ["refused", str(code), str(text)]:
            return Refused(code, text)
        case ["who"]:
            return Who()
        case ["resume", str(instance), int(received), int(consumed)]:
            return Resume(instance, received, consumed)
        case ["closed", str(instance), str(code), str(text)]:
            return Closed(instance, code, text)
        case ["bye", str(reason)]:
            return Bye(reason)
    return None


def _item(plain: Any) -> Item | None:
    match plain:
        case str() | bytes():
            return plain
        case [str(state), str(text)]:
            return Ended(state, text)
    return None
