"""`pie-py models`: what is served."""

from __future__ import annotations

import click

from pie_py.cli.connect import json_option, with_client
from pie_py.cli.console import table
from pie_py.client import sync

COLUMNS = {
    "name": "NAME",
    "architecture": "ARCHITECTURE",
    "dtype": "DTYPE",
    "vocab_size": "VOCABULARY",
    "max_position": "POSITIONS",
    "page_size": "PAGE SIZE",
    "kv_pages": "KV PAGES",
    "traits": "TRAITS",
}


@click.command("models")
@json_option
@with_client
def command(client: sync.Client, as_json: bool) -> None:
    """List the models being served, the default one first."""
    table(client.models(), COLUMNS, as_json)
