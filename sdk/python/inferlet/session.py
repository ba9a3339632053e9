"""Messages between this instance and the client that launched it: text, and bytes beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inferlet import raw
from inferlet._generated.awaited import receive, receive_blob
from inferlet._generated.awaited import writable as drain
from inferlet._json import dumps
from inferlet.errors import PieError

__all__ = ["drain", "receive", "receive_blob", "send", "send_blob"]


def send(message: Any) -> None:
    """Sends text to the client: a string as it is, anything else as a line of JSON.

    If the client does not read, the server keeps a bounded number of bytes for it; over that, this
    call waits, and with it every task of the inferlet. `await drain()` before it to let them run.

    Raises:
        PieError: `limit-exceeded` if the message is too large.
    """
    _send(raw.send, message if isinstance(message, str) else f"{dumps(message, _said)}\n")


def _said(part: Any) -> str:
    """The text of what is no JSON. Raises TypeError: it is still to be awaited or read."""
    if hasattr(part, "__await__") or hasattr(part, "__aiter__"):
        raise TypeError(f"Object of type {type(part).__name__} is not JSON serializable")
    return str(part)


def send_blob(data: bytes) -> None:
    """Sends bytes to the client. Waits and raises as `send` does."""
    _send(raw.send_blob, data)


def _send(send: Callable[[Any], None], what: str | bytes) -> None:
    while True:
        try:
            return send(what)
        except PieError as error:
            if error.code != "would-block":
                raise
        future = raw.writable()
        raw.wait([future])
        raw.take(future)
