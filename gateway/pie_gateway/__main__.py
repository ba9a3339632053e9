"""`python -m pie_gateway --config JSON`: the gateway, as the command line starts it."""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.applications import Starlette

from pie_gateway.app import make_app
from pie_gateway.http.connections import HttpConnection, WebSocketConnection
from pie_gateway.http.door import Door
from pie_gateway.http.handshakes import Handshake
from pie_gateway.listening import ACCEPTED, BACKLOG, CannotServe, listen
from pie_py.config.child import allow_open_files, read_options, report_error, report_ready
from pie_py.config.server import ServerConfig
from pie_py.config.turns import Turns

GRACE_SECONDS = 2  # for requests under way when the server stops
# Seconds for which a thread beside the event loop keeps Python's lock while that wants it.
SWITCH_SECONDS = 1e-3


class _Selector(selectors.DefaultSelector):
    """Tells when the event loop waits."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns.end()
        found = super().select(timeout)
        self._turns.begin()
        return found


async def serve(
    config: ServerConfig, turns: Turns, *, with_parent: bool, on_ready: Callable[[str], None]
) -> None:
    """Serves HTTP until it is stopped, or standard input closes if `with_parent`; `on_ready` gets
    the URL, and `turns` are the event loop's. The configuration is the server's: its endpoint is
    that of the control process. Raises `CannotServe`: the address is wrong or in use, or no user
    has the key that is needed.
    """
    gateway = config.gateway
    allow_open_files()
    door = Door(gateway.connections, time.monotonic)
    listening = listen(gateway.http, door.takes)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # Whether keys are needed is decided by the address at which it listens, not by a name of it.
    config = config.model_copy(update={"gateway": gateway.model_copy(update={"http": shown})})
    app = make_app(config, turns)
    server = _Server(_uvicorn_config(app, config, door), app, gateway.drain_seconds)
    if with_parent:
        asyncio.get_running_loop().add_reader(sys.stdin, _stop, server)
    scheme = "https" if gateway.tls_certificate else "http"
    on_ready(f"{scheme}://{shown}")
    watch = asyncio.create_task(door.run())
    await server.serve(sockets=[listening])
    watch.cancel()


class _Server(uvicorn.Server):
    """Accepts few connections at once, so that many that come do not keep the streams waiting."""

    def __init__(self, config: uvicorn.Config, app: Starlette, drain_seconds: float) -> None:
        super().__init__(config)
        self._app, self._drain_seconds = app, drain_seconds

    def leave(self) -> None:
        """Stops: later, if a balancer is to see it before; the second time at once."""
        if self._app.state.leaves or not self._drain_seconds:
            self.should_exit = True
            return
        self._app.state.leaves = True
        asyncio.get_running_loop().call_later(self._drain_seconds, self.leave)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit or self._app.state.leaves or not self._drain_seconds:
            super().handle_exit(sig, frame)
            return
        self._captured_signals.append(sig)
        asyncio.get_running_loop().call_soon_threadsafe(self.leave)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)  # the system may keep more


def _uvicorn_config(app: Starlette, config: ServerConfig, door: Door) -> uvicorn.Config:
    gateway = config.gateway
    found = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=cast(Any, partial(HttpConnection, door)),
        ws=cast(Any, partial(WebSocketConnection, door)),
        ws_ping_interval=gateway.quiet_seconds,
        ws_ping_timeout=gateway.quiet_seconds,
        ws_per_message_deflate=False,  # a message would be unpacked on the loop that all share
        backlog=ACCEPTED,
        limit_concurrency=gateway.connections,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
        ssl_certfile=gateway.tls_certificate,
        ssl_keyfile=gateway.tls_key,
    )
    found.load()
    if found.ssl is not None:
        # Handshakes are the door's, too; asyncio would do them before anything is told of them.
        handle = cast(Any, found.http_protocol_class)
        found.http_protocol_class = cast(Any, partial(Handshake, door, found.ssl, handle))
        found.ssl = None
    return found


def _stop(server: _Server) -> None:
    asyncio.get_running_loop().remove_reader(sys.stdin)
    server.leave()


def main() -> int:
    """Serves until SIGINT, SIGTERM, or (with `--with-parent`) the end of standard input.

    Says on standard output, in one line of JSON, that it is ready and where, or what went wrong.
    """
    config, with_parent = read_options("pie_gateway")
    gc.freeze()  # what is imported stays; requests leave circles, which are to be found
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        turns = Turns("gateway")
        with asyncio.Runner(
            loop_factory=lambda: asyncio.SelectorEventLoop(_Selector(turns))
        ) as runner:
            runner.run(serve(config, turns, with_parent=with_parent, on_ready=report_ready))
    except CannotServe as error:
        report_error(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
