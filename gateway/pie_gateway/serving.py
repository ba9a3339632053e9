"""The gateway's socket, and the server that speaks HTTP over it."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Callable

import uvicorn

from pie_gateway.app import make_app
from pie_py.config.gateway import DEFAULT_HTTP, GatewayConfig
from pie_py.config.server import ServerConfig

BACKLOG = 2048
GRACE_SECONDS = 2  # for requests under way when the server stops
HEADER_BYTES = 64 << 10


class CannotListen(Exception):
    """The address cannot be used; the text says why."""


async def serve(
    config: ServerConfig, *, with_parent: bool, on_ready: Callable[[str], None]
) -> None:
    """Serves HTTP until it is told to stop.

    Args:
        config: of the server; its endpoint is that of the control process.
        with_parent: stop when standard input closes.
        on_ready: gets the URL.

    Raises:
        CannotListen: the address is wrong, or in use.
    """
    gateway = config.gateway
    listening = listen(gateway.http)
    server = uvicorn.Server(_uvicorn_config(config))
    if with_parent:
        asyncio.get_running_loop().add_reader(sys.stdin, _stop, server)
    scheme = "https" if gateway.tls_certificate else "http"
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    on_ready(f"{scheme}://{shown}:{port}")
    await server.serve(sockets=[listening])


def _uvicorn_config(config: ServerConfig) -> uvicorn.Config:
    gateway = config.gateway
    return uvicorn.Config(
        make_app(config.endpoint, gateway),
        log_config=None,
        access_log=False,
        http="httptools",
        ws="websockets-sansio",
        backlog=BACKLOG,
        limit_concurrency=gateway.connections,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
        ssl_certfile=gateway.tls_certificate,
        ssl_keyfile=gateway.tls_key,
    )


def _stop(server: uvicorn.Server) -> None:
    asyncio.get_running_loop().remove_reader(sys.stdin)
    server.should_exit = True


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT.

    Raises:
        CannotListen: if it is not that.
    """
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:/\s]+):(\d{1,5})", text)
    if found is None or int(found[2]) > 65535:
        raise CannotListen(f"--http {text!r} is not HOST:PORT, as {DEFAULT_HTTP}")
    return found[1].strip("[]"), int(found[2])


def listen(address: str | None) -> socket.socket:
    """A socket that listens at HOST:PORT; without one at the default, or at any free port.

    Raises:
        CannotListen: if it cannot.
    """
    host, port = parse_address(address or DEFAULT_HTTP)
    for attempt in (port, 0):
        try:
            family = socket.getaddrinfo(host, attempt, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, attempt), family=family, backlog=BACKLOG)
        except OSError as error:
            if address is not None:
                raise CannotListen(
                    f"cannot listen for HTTP at {address}: {error.strerror or error}; choose"
                    " another with --http HOST:PORT, or none with --no-http"
                ) from None
    raise CannotListen(f"no port of {host} is free for HTTP; choose one with --http HOST:PORT")


def is_loopback(config: GatewayConfig) -> bool:
    """Whether only this machine reaches it."""
    host, _ = parse_address(config.http or DEFAULT_HTTP)
    return host == "localhost" or host == "::1" or host.startswith("127.")
