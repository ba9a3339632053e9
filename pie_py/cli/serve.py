"""`pie-py serve`: a server that stays.

With `--detach` this module is the process that runs on: `python -m pie_py.cli.serve --config JSON`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from pie_py.cli import kept_servers
from pie_py.cli.config_options import config_options, http_options
from pie_py.cli.connect import EXIT_FAILED, EXIT_TERMINATED, FILE, fail
from pie_py.cli.console import alive, progress, say
from pie_py.cli.known_at_once import check_at_once, check_users
from pie_py.cli.pull import pull_those_of
from pie_py.cli.server_config import names_of, server_config
from pie_py.config.processes import Supervisor
from pie_py.config.server_process import ServerFailed, ServerProcess

if TYPE_CHECKING:
    from pie_py.config.server import ServerConfig


@click.command("serve")
@click.option(
    "--detach", is_flag=True, help="Return once it serves; it runs on until `pie-py stop`."
)
@click.option(
    "--endpoint",
    metavar="ENDPOINT",
    help="Where to listen: tcp://HOST:PORT or ipc://PATH.  [default: tcp://127.0.0.1:7743]",
)
@http_options
@config_options
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
def command(detach: bool, **options: Any) -> None:
    """Serve until Ctrl-C or SIGTERM.

    An endpoint that other machines reach is encrypted and lets in only users with a key
    (`pie-py keys add USER`). On tcp://127.0.0.1 and ipc:// every client is user "local". HTTP is
    served beside it, for OpenAI's clients and for browsers.
    """
    config = server_config(**options)
    from pie_py.config.logs import set_up_logs

    check_at_once(config, http=True)
    pull_those_of(config.models)
    if detach:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that it is ended
        try:
            with progress(f"starting a server with {names_of(config)}") as show:
                facts = kept_servers.detach(config, show)
        except ServerFailed as error:
            fail(f"the server did not start: {error}")
        say(f"ready at {facts['endpoint']}; `pie-py stop` ends it; its log is {facts['log']}")
        if facts["http"]:
            say(f"HTTP at {facts['http']}")
        return
    set_up_logs(config.log)
    note = partial(kept_servers.note_in_front, config)
    sys.exit(_serve(config, say if config.log.format == "text" else _logged, note))


@click.command("check-config")
@click.argument("file", type=FILE)
def check_config(file: Path) -> None:
    """Say what is wrong with a server's configuration, without starting one.

    Names, types and ranges of settings; models, users and packages that it needs.
    """
    config = server_config(file)
    check_at_once(config, http=False)
    if config.gateway.enabled:
        check_users(config)
    say(f"{file} is in order: {names_of(config)}, data in {config.data_folder}")


def _serve(
    config: ServerConfig,
    tell: Callable[[str], object],
    report: Callable[[dict[str, object]], object] = lambda facts: None,
) -> int:
    """Serves until a signal comes; returns the exit status. `tell` is told what goes on; `report`
    gets a line of JSON once all serve, or if they do not.
    """

    def starting(text: str) -> None:
        tell(text)
        report({"doing": text})

    with ServerProcess(config) as server, ExitStack() as stack:
        server.stop_on_signals()
        tell(f"starting with {names_of(config)}")
        facts: dict[str, object] = {}
        try:
            with alive():
                endpoint = server.wait_ready(starting)
                if config.gateway.enabled:
                    config = config.model_copy(update={"endpoint": endpoint})
                    facts["http"] = stack.enter_context(gateway_process(config))
            if "http" in facts:
                tell(f"HTTP at {facts['http']}")
        except ServerFailed as error:
            tell(f"error: {error}")
            report({"error": str(error)})
            return EXIT_FAILED
        tell(f"ready at {endpoint}; Ctrl-C stops it")
        report({"ready": True, "endpoint": endpoint, **facts})
        _notify_systemd("READY=1")
        status = server.wait()
        if status < 0:
            reason = signal.strsignal(-status) or f"signal {-status}"
            tell(f"error: the server was ended by another process or the system: {reason}")
            return 128 - status
        if status:
            tell(f"error: the server ended with status {status}; its log says why")
        return status


def _notify_systemd(state: str) -> None:
    """Tells the manager of a unit of `Type=notify`, where there is one (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name of the kernel's, not a path
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, suppress(OSError):
        manager.sendto(state.encode(), address)


def _logged(text: str) -> None:
    import structlog

    structlog.get_logger("pie.serve").info(text)


def main() -> int:
    """The process that runs on behind `--detach`."""
    from pie_py.config.child import read_options, report

    config, _ = read_options("pie_py.cli.serve")
    return _serve(config, _logged, report)


@contextmanager
def gateway_process(config: ServerConfig) -> Iterator[str]:
    """The URL of a gateway that runs within the context, and is started again whenever it ends. The
    configuration is that of its server, with the endpoint at which that listens. Raises
    `ServerFailed`: it cannot serve, as where its address is taken.
    """
    import structlog

    log = structlog.get_logger("pie.serve")
    first = ServerProcess(config, module="pie_gateway")
    try:
        url = first.wait_ready()
    except ServerFailed:
        first.stop()
        raise
    # Users have this address, also where the default one was taken.
    gateway = config.gateway.model_copy(update={"http": urlsplit(url).netloc})
    config = config.model_copy(update={"gateway": gateway})

    def attend(child: ServerProcess) -> None:
        try:
            if child is not first:
                log.info("gateway ready again", url=child.wait_ready())
            child.wait()
        except ServerFailed as error:
            log.error("the gateway does not start", reason=str(error))

    def on_lost(reason: str, pause: float) -> None:
        log.error("gateway lost, starting another", reason=reason, seconds=pause)

    def start() -> ServerProcess:
        return ServerProcess(config, module="pie_gateway")

    supervisor = Supervisor("gateway", start, on_lost, attend=attend, child=first)
    try:
        yield url
    finally:
        supervisor.stop()


if __name__ == "__main__":
    sys.exit(main())
