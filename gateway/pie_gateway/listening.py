"""The address of HTTP, and its socket."""

from __future__ import annotations

import re
import socket

from pie_py.config.gateway import DEFAULT_HTTP

BACKLOG = 2048
# Bytes that the operating system keeps for a client that does not read. By itself it would keep
# megabytes for each, all of a long answer.
SEND_BYTES = 128 << 10


class CannotServe(Exception):
    """The gateway cannot serve as it is configured; the text says why."""


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    Raises:
        CannotServe: if it is not that.
    """
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:/\s]+):(\d{1,5})", text)
    if found is None or int(found[2]) > 65535:
        raise CannotServe(f"--http {text!r} is not HOST:PORT, as {DEFAULT_HTTP}")
    return found[1].strip("[]"), int(found[2])


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


def is_loopback(address: str | None) -> bool:
    """Whether only this machine reaches it.

    Raises:
        CannotServe: it is no address.
    """
    host, _ = parse_address(address or DEFAULT_HTTP)
    return host == "localhost" or host == "::1" or host.startswith("127.")
