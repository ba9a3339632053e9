"""`pie-py serve`: a server that stays."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from pie_py.cli.config_options import config_options
from pie_py.cli.connect import EXIT_FAILED
from pie_py.cli.console import say
from pie_py.cli.http_options import http_options
from pie_py.cli.pull import pull_those_of
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
    "--record",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Record all inferlets' API calls there, a file each, for `pie-py replay`.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Of the log on standard error.  [default: text]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What is logged.  [default: info]",
)
def command(**options: Any) -> None:
    """Serve until Ctrl-C or SIGTERM.

    An endpoint that other machines reach is encrypted and lets in only users with a key
    (`pie-py keys add USER`). On tcp://127.0.0.1 and ipc:// every client is user "local". HTTP is
    served beside it, for OpenAI's clients and for browsers.
    """
    config = server_config(**options)
    import structlog

    from pie_py.config.endpoint import parse_endpoint
    from pie_py.config.gateway import NO_USERS
    from pie_py.config.keys import KeyStore

    local = config.gateway.is_local and parse_endpoint(config.endpoint).is_loopback
    if config.gateway.enabled and not local and not KeyStore(config.data_folder).users():
        raise click.UsageError(NO_USERS)  # not only once the model is loaded

    from pie_py.cli.gateway_process import gateway_process
    from pie_py.config.logs import set_up_logs
    from pie_py.config.server_process import ServerFailed, ServerProcess

    pull_those_of(config.models)
    set_up_logs(config.log)
    tell = say if config.log.format == "text" else structlog.get_logger("pie.serve").info
    with ServerProcess(config) as server, ExitStack() as stack:
        server.stop_on_signals()
        tell(f"starting with {', '.join(model.name or model.source for model in config.models)}")
        try:
            endpoint = server.wait_ready()
            if config.gateway.enabled:
                config = config.model_copy(update={"endpoint": endpoint})
                tell(f"HTTP at {stack.enter_context(gateway_process(config))}")
            tell(f"ready at {endpoint}; Ctrl-C stops it")
        except ServerFailed as error:
            tell(f"error: {error}")
            sys.exit(EXIT_FAILED)
        sys.exit(server.wait())
