"""`pie-py programs`: what has been uploaded."""

from __future__ import annotations

import click

from pie_py.cli.connect import json_option, with_client
from pie_py.cli.console import table
from pie_py.client import sync

COLUMNS = {
    "name": "NAME",
    "hash": "HASH",
    "kind": "KIND",
    "size": "SIZE",
    "user": "USER",
    "uploaded_ns": "UPLOADED",
}


@click.command("programs")
@json_option
@with_client
def command(client: sync.Client, as_json: bool) -> None:
    """List the uploaded programs, oldest first."""
    table(client.programs(), COLUMNS, as_json)
