"""Errors between a client and a server."""

from __future__ import annotations

from pie_py.config.printable import printable


class ClientError(Exception):
    """Any error that the client raises on purpose."""


class ServerUnreachable(ClientError):
    """No server answers at the endpoint, or it does not let this client in."""


class ConnectionLost(ClientError):
    """The server has stopped or forgotten this session: requests may have been done or not."""


class RpcError(ClientError):
    """The server refused a request. `code` is stable, `message` says why and how to mend it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class RequestTooLarge(RpcError):
    """It has not been sent: the server takes none of its size."""

    def __init__(self, message: str) -> None:
        super().__init__("limit-exceeded", message)


class InferletFailed(ClientError):
    """An instance ended without a result: an error, a trap, a limit, or it was killed."""

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state  # "failed" or "killed"
        self.text = text


class UsageError(InferletFailed):
    """An inferlet did not understand its arguments: its error begins with `usage:`."""


def unreadable(what: str, error: Exception) -> ClientError:
    """The exception for what a server has sent, and its client cannot take for what it should be.

    Whatever a server sends, a program that uses it gets an exception of this module.
    """
    found = ClientError(
        f"the server has sent {what}, which cannot be read: {printable(repr(error))}"
    )
    found.__cause__ = error
    return found


def instance_error(state: str, text: str) -> InferletFailed:
    """The exception for an instance that ended without a result."""
    kind = UsageError if text.startswith("usage:") else InferletFailed
    return kind(state, text)
