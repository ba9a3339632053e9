"""The address of HTTP, and its socket."""

from __future__ import annotations

import socket

from pie_py.config.gateway import DEFAULT_HTTP, parse_address

BACKLOG = 2048
# Bytes that the operating system keeps for a client that does not read. By itself it would keep
# megabytes for each, all of a long answer.
SEND_BYTES = 128 << 10


class CannotServe(Exception):
    """The gateway cannot serve as it is configured; the text says why."""


def listen(address: str | None) -> socket.socket:
    """A socket that listens at HOST:PORT; without one at the default, or at any free port.

    Raises:
        CannotServe: if it cannot.
    """
    host, port = parse_address(address or DEFAULT_HTTP)
    for attempt in (port, 0):
        try:
            family = socket.getaddrinfo(host, attempt, type=socket.SOCK_STREAM)[0][0]
            listening = socket.create_server((host, attempt), family=family, backlog=BACKLOG)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            return listening
        except OSError as error:
            if address is not None:
                raise CannotServe(
                    f"cannot listen for HTTP at {address}: {error.strerror or error}; choose"
                    " another with --http HOST:PORT, or none with --no-http"
                ) from None
    raise CannotServe(f"no port of {host} is free for HTTP; choose one with --http HOST:PORT")
