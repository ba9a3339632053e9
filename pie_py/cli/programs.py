"""`pie-py programs`: what has been uploaded, and its removal."""

from __future__ import annotations

from typing import Any

import click

from pie_py.cli.connect import json_option, server_options, with_client
from pie_py.cli.console import say, table
from pie_py.client import sync

COLUMNS = {
    "name": "NAME",
    "hash": "HASH",
    "kind": "KIND",
    "size": "SIZE",
    "user": "USER",
    "uploaded_ns": "UPLOADED",
}


@click.group("programs", invoke_without_command=True)
@json_option
@server_options
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:
    """List the uploaded programs, oldest first; or remove some."""
    if context.invoked_subcommand is None:
        _list(**options)


@with_client
def _list(client: sync.Client, as_json: bool) -> None:
    table(client.programs(), COLUMNS, as_json)


@command.command("rm")
@click.argument("programs", nargs=-1, required=True, metavar="PROGRAM...")
@click.option("--force", is_flag=True, help="Also with running instances, which are ended.")
@with_client
def remove(client: sync.Client, programs: tuple[str, ...], force: bool) -> None:
    """Remove programs of yours, by name or hash. A name takes its former programs with it."""
    for program in programs:
        for removed in client.remove_program(program, force=force):
            say(f"{removed['name']} ({removed['hash'][:12]}) is removed")
