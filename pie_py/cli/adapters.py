"""`pie-py adapters`: LoRA adapters of a running server."""

from __future__ import annotations

from pathlib import Path

import click

from pie_py.cli.connect import json_option, with_client
from pie_py.cli.console import say, table
from pie_py.client import sync

COLUMNS = {"model": "MODEL", "name": "NAME"}

_model = click.option(
    "--model", help="The model that it is for; the server's first one by default."
)


@click.group("adapters")
def command() -> None:
    """List, load and unload LoRA adapters, which PEFT has saved in a folder each."""


@command.command("list")
@json_option
@with_client
def list_adapters(client: sync.Client, as_json: bool) -> None:
    """List the adapters that inferlets may use."""
    table(client.adapters(), COLUMNS, as_json)


@command.command("load")
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
@_model
@with_client
def load(client: sync.Client, name: str, folder: Path, model: str | None) -> None:
    """Load FOLDER, of the server's machine, as NAME. Only the operator may."""
    client.load_adapter(name, folder.absolute(), model)
    say(f"adapter {name} is loaded")


@command.command("unload")
@click.argument("name")
@_model
@with_client
def unload(client: sync.Client, name: str, model: str | None) -> None:
    """Unload NAME, which no instance uses. Only the operator may."""
    client.unload_adapter(name, model)
    say(f"adapter {name} is unloaded")
