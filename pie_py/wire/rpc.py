"""Messages between a client and the server; `docs/protocol.md` tells how they are used.

One message is one ZeroMQ message of one frame: a msgpack array whose first element names its kind.
Never several frames: libzmq 4.3 aborts a receiver that has read some parts of a message when the
connection breaks (`!_more` in its fq.cpp).

msgspec packs and checks the fields by their types: 6 to 8 times as fast as msgpack and checks by
hand.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgpack
import msgspec

PROTOCOL = 2  # grows with every incompatible change
SESSION_BYTES = 16
CHUNK_BYTES = 1 << 20  # of a program, in one message
LATER = "; try again later"  # ends the text of an error that a later try may not have
# Of an instance that was ended for others' memory: its client may launch it again.
MADE_WAY = (
    "ended to free what an instance needs that was launched earlier, or whose user holds less"
)
MAX_ARGUMENT_BYTES = 1 << 20  # of one launch, all together
ERROR_CHARS = 200  # of why a frame is no message
FRAME_OVERHEAD = 64 << 10  # room for what surrounds the largest message in a frame


class Ended(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Last item of an instance's stream."""

    state: str  # "finished", "failed" or "killed"
    text: str  # the result, or why it ended otherwise


Item: TypeAlias = str | bytes | Ended


def size_of(item: str | bytes) -> int:
    """Bytes of an item, as windows count them."""
    if isinstance(item, str) and not item.isascii():
        return len(item.encode())
    return len(item)


class _Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An array of the kind's name and the fields in their order."""


# Client to server


class Hello(_Message, tag="hello"):
    """First message of every connection: opens a session or resumes it."""

    protocol: int
    session: bytes  # 16 random bytes, chosen by the client
    client: str  # name and version, for the server's log


class Request(_Message, tag="request"):
    """Asks for something. Sent again under the same number, it is not done again."""

    number: int  # grows with every request of a session
    answered_below: int  # all lower numbers have been answered, or given up
    method: str
    params: dict[str, Any]


class ReadRequest(Request, tag="request"):
    """A request as it comes: its parameters are read by the method's types, and what those do not
    name is skipped, so that a frame takes no longer than what is wanted of it.
    """

    params: msgspec.Raw  # type: ignore[assignment]


class Ack(_Message, tag="ack"):
    """The client has consumed an instance's items below a number."""

    instance: str
    consumed: int


class Resume(_Message, tag="resume"):
    """After a resumed session: go on with an instance's stream, from item number `received` on."""

    instance: str
    received: int
    consumed: int


class Ping(_Message, tag="ping"):
    """Says that the client lives; the server answers with `Pong`."""


class Probed(_Message, tag="probed"):
    """Answer to `Probe`."""

    number: int


# Server to client


class Welcome(_Message, tag="welcome"):
    """Answer to `Hello`."""

    resumed: bool  # whether the session was known, with its requests and streams
    user: str
    facts: dict[str, Any]  # versions, limits and intervals, see docs/protocol.md


class Refused(_Message, tag="refused"):
    """Answer to a `Hello` that the server cannot serve, or to what is no message."""

    code: str
    message: str


class Who(_Message, tag="who"):
    """The server knows no session on this connection: say hello."""


class Response(_Message, tag="response"):
    """A request's value."""

    number: int
    value: Any


class Failure(_Message, tag="failure"):
    """A request's error."""

    number: int
    code: str
    message: str


class Items(_Message, tag="items"):
    """Consecutive items of an instance's stream."""

    instance: str
    first: int  # number of the first item
    items: list[Any]  # of `Item`: msgspec takes no union of text and bytes

    def __post_init__(self) -> None:
        for place, item in enumerate(self.items):
            if not isinstance(item, str | bytes | Ended):
                self.items[place] = msgspec.convert(item, Ended)


class Closed(_Message, tag="closed"):
    """An instance's stream goes on without this session."""

    instance: str
    code: str
    message: str


class Pong(_Message, tag="pong"):
    """Answer to `Ping`."""


class Probe(_Message, tag="probe"):
    """Asks for its number back at once, which shows that all that was sent before it has been
    read."""

    number: int


# Both ways


class Bye(_Message, tag="bye"):
    """The sender leaves on purpose."""

    reason: str


ToServer: TypeAlias = Hello | Request | Ack | Resume | Ping | Probed | Bye
ToClient: TypeAlias = (
    Welcome | Refused | Who | Response | Failure | Items | Closed | Pong | Probe | Bye
)
Message: TypeAlias = ToServer | ToClient


_encoder = msgspec.msgpack.Encoder()
_Read: TypeAlias = Hello | ReadRequest | Ack | Resume | Ping | Probed | Bye
_at_server: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(_Read)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(_Read | ToClient)


def encode(message: Message) -> bytes:
    """Turns a message into the bytes of its frame.

    Raises:
        TypeError, ValueError, OverflowError: if a field holds what msgpack cannot.
    """
    return _encoder.encode(message)


class NotAMessage(ValueError):
    """Bytes that are no message of this protocol."""

    def __init__(self, text: str, request: int | None) -> None:
        super().__init__(text)
        self.request = request  # number of the request that it was to be, if that can be read


def decode(frame: bytes | memoryview, *, at_server: bool = False) -> Message:
    """Reads a message back; a server reads none that are for clients, which would take it long.

    Raises:
        NotAMessage: if the bytes are not a message of this protocol. Nothing else, whatever they
            are.
    """
    try:
        return (_at_server if at_server else _decoder).decode(frame)
    except msgspec.ValidationError as error:
        text = f"not a message of protocol {PROTOCOL}: {_short(error)}"
    except Exception as error:  # noqa: BLE001  nesting, UTF-8, its end, or others
        text = f"not msgpack: {_short(error)}"
    raise NotAMessage(text, _request_number(frame))


def _short(error: Exception) -> str:
    """The fault, without all that was sent: msgspec repeats a name that it does not know."""
    text = str(error)
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]}..."


_REQUEST_HEAD_BYTES = 24  # at most, up to its number


def _request_number(frame: bytes | memoryview) -> int | None:
    """The number of a request whose rest cannot be read, so that it can be answered."""
    head = msgpack.Unpacker()  # msgspec reads whole messages only
    head.feed(bytes(frame[:_REQUEST_HEAD_BYTES]))
    try:
        head.read_array_header()
        kind, number = head.unpack(), head.unpack()
    except Exception:  # noqa: BLE001  a hostile frame has no number
        return None
    return number if kind == "request" and type(number) is int else None
