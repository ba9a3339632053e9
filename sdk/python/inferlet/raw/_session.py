"""Interface `session`: messages to and from the client."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import session as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_bytes, as_text


def send(message: str) -> None:
    """Sends text to the client. The server keeps a bounded number of bytes for a client that does
    not read: over it the error is `would-block`, and `writable` tells when to try again.
    Errors: `would-block`, `limit-exceeded` (one message too large).
    """
    try:
        interface.send(as_text(message))
    except Err as error:
        raise PieError(error.value) from None


def send_blob(data: bytes) -> None:
    """Sends bytes to the client. Errors: as `send`."""
    try:
        interface.send_blob(as_bytes(data))
    except Err as error:
        raise PieError(error.value) from None


def writable() -> int:
    """A future that is ready when `send` has room again. Consume it with `take`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = interface.writable()
    except Err as error:
        raise PieError(error.value) from None
    return answer


def receive() -> int:
    """A future of the client's next text. Consume it with `take_text`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = interface.receive()
    except Err as error:
        raise PieError(error.value) from None
    return answer


def receive_blob() -> int:
    """A future of the client's next bytes. Consume it with `take_blob`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = interface.receive_blob()
    except Err as error:
        raise PieError(error.value) from None
    return answer
