"""`python -m pie_gateway --config JSON`: the gateway, as the command line starts it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import uvicorn

from pie_gateway.app import make_app
from pie_gateway.listening import BACKLOG, CannotServe, listen
from pie_py.config.child import read_options, report_error, report_ready
from pie_py.config.server import ServerConfig

GRACE_SECONDS = 2  # for requests under way when the server stops


async def serve(
    config: ServerConfig, *, with_parent: bool, on_ready: Callable[[str], None]
) -> None:
    """Serves HTTP until it is stopped.

    Args:
        config: of the server; its endpoint is that of the control process.
        with_parent: stop when standard input closes.
        on_ready: gets the URL.

    Raises:
        CannotServe: the address is wrong or in use, or no user has the key that is needed.
    """
    gateway = config.gateway
    listening = listen(gateway.http)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # Whether keys are needed is decided by the address at which it listens, not by a name of it.
    config = config.model_copy(update={"gateway": gateway.model_copy(update={"http": shown})})
    server = uvicorn.Server(_uvicorn_config(config))
    if with_parent:
        asyncio.get_running_loop().add_reader(sys.stdin, _stop, server)
    scheme = "https" if gateway.tls_certificate else "http"
    on_ready(f"{scheme}://{shown}")
    await server.serve(sockets=[listening])


def _uvicorn_config(config: ServerConfig) -> uvicorn.Config:
    gateway = config.gateway
    return uvicorn.Config(
        make_app(config),
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


def main() -> int:
    """Serves until SIGINT, SIGTERM, or (with `--with-parent`) the end of standard input.

    Says on standard output, in one line of JSON, that it is ready and where, or what went wrong.
    """
    config, with_parent = read_options("pie_gateway")
    try:
        asyncio.run(serve(config, with_parent=with_parent, on_ready=report_ready))
    except CannotServe as error:
        report_error(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
