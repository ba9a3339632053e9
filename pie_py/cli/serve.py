"""`pie-py serve`: a server that stays."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import click

from pie_py.cli.config_options import config_options
from pie_py.cli.connect import EXIT_FAILED
from pie_py.cli.console import say
from pie_py.cli.http_options import http_options
from pie_py.cli.server_config import server_config


@click.command("serve")
@click.option(
    "--endpoint",
    metavar="ENDPOINT",
    help="Where to listen: tcp://HOST:PORT or ipc://PATH.  [default: tcp://127.0.0.1:7743]",
)
@http_options
@config_options
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def command(endpoint: str | None, log_level: str, **options: Any) -> None:
    """Serve until Ctrl-C or SIGTERM.

    An endpoint that other machines reach is encrypted and lets in only users with a key
    (`pie-py keys add USER`). On tcp://127.0.0.1 and ipc:// every client is user "local". HTTP is
    served beside it, for OpenAI's clients and for browsers.
    """
    config = server_config(endpoint=endpoint, **options)
    from pie_py.client.server_process import ServerFailed, ServerProcess

    with ServerProcess(config, log_level) as server, ExitStack() as stack:
        server.stop_on_signals()
        say(f"starting with {', '.join(model.name or model.source for model in config.models)}")
        try:
            endpoint = server.wait_ready()
            if config.gateway.enabled:
                config = config.model_copy(update={"endpoint": endpoint})
                gateway = ServerProcess(config, log_level, module="pie_gateway")
                say(f"HTTP at {stack.enter_context(gateway).wait_ready()}")
            say(f"ready at {endpoint}; Ctrl-C stops it")
        except ServerFailed as error:
            say(f"error: {error}")
            sys.exit(EXIT_FAILED)
        sys.exit(server.wait())
