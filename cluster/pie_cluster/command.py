"""`pie-py cluster`: many nodes as one server."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from pie_py.cli.arguments import SuggestingGroup
from pie_py.cli.connect import EXIT_FAILED, EXIT_TERMINATED, json_option
from pie_py.cli.console import say, table
from pie_py.cli.examples import with_example

if TYPE_CHECKING:
    from pie_cluster.machines.settings import Token

EXAMPLES = {
    "cluster": "pie-py cluster status",
    "cluster up": "pie-py cluster up --address auto    # on the Ray that runs here",
    "cluster join": "pie-py cluster join tcp://127.0.0.1:7743 --token token.json --nodes 2",
    "cluster status": "pie-py cluster status --json",
    "cluster drain": "pie-py cluster drain n2 --seconds 600",
    "cluster restart": "pie-py cluster restart n2 --seconds 600",
    "cluster down": "pie-py cluster down",
}


STATUS = {
    "node": "NODE",
    "incarnation": "LIFE",
    "state": "STATE",
    "version": "VERSION",
    "instances": "INSTANCES",
    "pool": "POOL",
    "waiting_seconds": "LOAD",
    "silent_seconds": "LAST SEEN",
    "advice": "",
}


@click.group("cluster", cls=SuggestingGroup)
def command() -> None:
    """Serve from many nodes as one server."""


folder_option = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Of the cluster on this machine.  [default: that of a cluster without a configuration]",
)


@command.command("up")
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A TOML file; docs/cluster.md has its settings.",
)
@click.option(
    "--address",
    default="",
    help="Of a Ray that is there already, HOST:PORT or auto.  [default: one of the cluster's own]",
)
def up(config_file: Path | None, address: str) -> None:
    """Start a cluster on this machine, with its first nodes; it stays until `down`."""
    from pie_cluster.machines import operate
    from pie_cluster.machines.settings import read_config

    with _problems_shown(), _terminated_in_order():
        config = read_config(config_file, address)
        token = operate.up(config, say)
    say(f"the token for machines that join: {config.folder.absolute() / 'token.json'}")
    _say_http(config.folder.absolute())
    click.echo(token.gateway)
    if token.is_encrypted:
        say(f"users need keys: pie-py keys add USER --data-folder {token.server['data_folder']}")
        say(f"then: pie-py ps --endpoint {token.gateway} --key USER.key.json")
    else:
        say(f"next: PIE_PY_ENDPOINT={token.gateway} pie-py run text_completion --prompt Hello")


@command.command("join")
@click.argument("address")
@click.option(
    "--token",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file that `up` has written.",
)
@click.option("--nodes", type=click.IntRange(0, 1024), help="How many.  [default: by GPUs]")
@click.option(
    "--host",
    help="This machine's address, for the others.  [default: that by which it reaches ADDRESS]",
)
@click.option("--http", help="HOST:PORT where it serves HTTP, as the head does.  [default: none]")
@folder_option
def join(
    address: str,
    token: Path,
    nodes: int | None,
    host: str | None,
    http: str | None,
    folder: Path | None,
) -> None:
    """Make nodes of this machine, for the cluster whose gateway is at ADDRESS."""
    from pie_cluster.machines import operate

    with _problems_shown(), _terminated_in_order():
        folder = _folder(folder)
        names = operate.join(address, token, folder, nodes, host, say, http)
    say(f"joined: {', '.join(names) or 'without nodes'}")
    _say_http(folder)


@command.command("status")
@folder_option
@json_option
def status(folder: Path | None, as_json: bool) -> None:
    """List the nodes, with what is wrong and what to do."""
    from pie_cluster.machines import operate
    from pie_cluster.machines.settings import directory_of

    with _problems_shown():
        token, folder = _token(folder)
        nodes = directory_of(token).nodes()
    rows = []
    for node in nodes:
        row = {**asdict(node), "advice": operate.advice(node)}
        del row["reason"], row["public_key"]  # the advice has the one, the gateway the other
        rows.append({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()})
    table(rows, STATUS, as_json)
    say(f"clients connect to {token.gateway}")
    _say_http(folder)
    say(f"on {'a Ray that was there before' if token.namespace else 'its own Ray'}, {token.ray}")


seconds_option = click.option(
    "--seconds",
    default=3600.0,
    type=click.FloatRange(0, 1e6),
    help="After which it ends even with instances.  [default: an hour]",
)


@command.command("drain")
@click.argument("node")
@seconds_option
@folder_option
def drain(node: str, seconds: float, folder: Path | None, *, again: bool = False) -> None:
    """Have NODE take no more; it ends when it is empty, or at the deadline."""
    from pie_cluster.machines.settings import directory_of

    with _problems_shown():
        token, _ = _token(folder)
        directory_of(token).ask("drain", node=node, seconds=seconds, again=again)
    then = "starts again" if again else "ends"
    say(f"{node} takes no more, and {then} when it is empty, or in {seconds:g} s")


@command.command("restart")
@click.argument("node")
@seconds_option
@folder_option
def restart(node: str, seconds: float, folder: Path | None) -> None:
    """Drain NODE, and start it again then: its control process and its worker."""
    assert drain.callback is not None
    drain.callback(node, seconds, folder, again=True)


@command.command("down")
@folder_option
def down(folder: Path | None) -> None:
    """End what this machine runs of a cluster."""
    from pie_cluster.machines import operate

    with _problems_shown():
        folder = _folder(folder)
        ended = operate.down(folder)
    say(f"ended {', '.join(ended)}" if ended else f"nothing of a cluster runs in {folder}")


def _say_http(folder: Path) -> None:
    from pie_cluster.machines.operate import http_url

    if (url := http_url(folder)) is not None:
        say(f"HTTP at {url}")


def _folder(given: Path | None) -> Path:
    from pie_cluster.machines.settings import ClusterConfig

    return (given or ClusterConfig().folder).absolute()


def _token(folder: Path | None) -> tuple[Token, Path]:
    from pie_cluster.config import ClusterProblem
    from pie_cluster.machines.settings import Token

    folder = _folder(folder)
    if not (folder / "token.json").exists():
        raise ClusterProblem(f"no cluster is in {folder}; `pie-py cluster up` starts one")
    return Token.read(folder / "token.json"), folder


@contextmanager
def _problems_shown() -> Iterator[None]:
    """Turns what can go wrong into a line on standard error and the exit status."""
    from pie_cluster.config import ClusterProblem
    from pie_cluster.machines.settings import WrongSettings

    try:
        yield
    except WrongSettings as error:
        raise click.UsageError(str(error)) from None
    except ClusterProblem as error:
        say(f"error: {error}")
        sys.exit(EXIT_FAILED)


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Within it SIGTERM ends this process as Ctrl-C does: what it has started ends as well."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # all ends already
        sys.exit(EXIT_TERMINATED)

    former = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


with_example(command, "cluster", EXAMPLES)
