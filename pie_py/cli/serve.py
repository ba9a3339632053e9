"""`pie-py serve`: a server that stays."""

from __future__ import annotations

import sys
from typing import Any

import click

from pie_py.cli.config_options import config_options
from pie_py.cli.connect import EXIT_FAILED
from pie_py.cli.console import say
from pie_py.cli.server_config import server_config


@click.command("serve")
@click.option(
    "--endpoint",
    metavar="ENDPOINT",
    help="Where to listen: tcp://HOST:PORT or ipc://PATH.  [default: tcp://127.0.0.1:7743]",
)
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
    (`pie-py keys add USER`). On tcp://127.0.0.1 and ipc:// every client is user "local".
    """
    config = server_config(endpoint=endpoint, **options)
    from pie_py.client.server_process import ServerFailed, ServerProcess

    with ServerProcess(config, log_level) as server:
        server.stop_on_signals()
        say(f"starting with {', '.join(model.name or model.source for model in config.models)}")
        try:
            say(f"ready at {server.wait_ready()}; Ctrl-C stops it")
        except ServerFailed as error:
            say(f"error: {error}")
            sys.exit(EXIT_FAILED)
        sys.exit(server.wait())
