"""The address of HTTP, and its socket."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from pie_py.config.gateway import DEFAULT_HTTP, parse_address

BACKLOG, ACCEPTED = 2048, 16  # connections that wait, and that are accepted at once
REFUSED = 64  # for each that is accepted
# Bytes that the operating system keeps for a client that does not read. By itself it would keep
# megabytes for each, all of a long answer.
SEND_BYTES = 128 << 10


class CannotServe(Exception):
    """The gateway cannot serve as it is configured; the text says why."""


class Listening(socket.socket):
    """A socket that closes what it does not take at once, before anything is made for it."""

    takes: Callable[[str], bool]  # whether a connection from an address is taken

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that is taken. Raises `BlockingIOError`: there is none for now."""
        for _ in range(REFUSED):
            made, address = super().accept()
            if self.takes(address[0]):
                return made, address
            made.close()
        raise BlockingIOError


def listen(address: str | None, takes: Callable[[str], bool]) -> Listening:
    """A socket that listens at HOST:PORT; without one at the default, or at any free port. `takes`
    tells whether a connection from an address is taken. Raises `CannotServe` if it cannot.
    """
    host, port = parse_address(address or DEFAULT_HTTP)
    for attempt in (port, 0):
        try:
            family = socket.getaddrinfo(host, attempt, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((host, attempt), family=family, backlog=BACKLOG)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            found = Listening(fileno=listening.detach())
            found.takes = takes
            return found
        except OSError as error:
            if address is not None:
                raise CannotServe(
                    f"cannot listen for HTTP at {address}: {error.strerror or error}; choose"
                    " another with --http HOST:PORT, or none with --no-http"
                ) from None
    raise CannotServe(f"no port of {host} is free for HTTP; choose one with --http HOST:PORT")
