"""Models and their adapters: `pie-py models`, `adapters`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from pie_py.cli.connect import EXIT_FAILED, json_option, with_client
from pie_py.cli.console import say, table
from pie_py.client import sync

MODEL_COLUMNS = {
    "name": "NAME",
    "architecture": "ARCHITECTURE",
    "dtype": "DTYPE",
    "vocab_size": "VOCABULARY",
    "max_position": "POSITIONS",
    "page_size": "PAGE SIZE",
    "kv_pages": "KV PAGES",
    "adapters": "ADAPTERS",
}

_NONE_SERVED = "no model is served at the moment: the worker is starting, or starting again"


@click.command("models")
@click.argument("model", required=False)
@click.option("--traits", is_flag=True, help="Print the traits that a model offers, one a line.")
@json_option
@with_client
def models(client: sync.Client, model: str | None, traits: bool, as_json: bool) -> None:
    """List the models being served, the default one first, or only MODEL."""
    served = client.models()
    if not served and model is not None:  # whether there is such a model is not known yet
        say(f"error: {_NONE_SERVED}; ask for {model} again")
        sys.exit(EXIT_FAILED)
    if not served:
        say(_NONE_SERVED)
    if model is not None:
        names = ", ".join(facts["name"] for facts in served)
        served = [facts for facts in served if facts["name"] == model]
        if not served:
            raise click.UsageError(f"no model is called {model!r}; served: {names}")
    if not traits:
        table(served, MODEL_COLUMNS, as_json)
    elif served:
        offered = served[0]["traits"]
        click.echo(json.dumps(offered) if as_json else "\n".join(offered))


ADAPTER_COLUMNS = {"model": "MODEL", "name": "NAME"}

_model = click.option(
    "--model", help="The model that it is for; the server's first one by default."
)


@click.group("adapters")
def adapters() -> None:
    """List, load and unload LoRA adapters, which PEFT has saved in a folder each."""


@adapters.command("list")
@json_option
@with_client
def list_adapters(client: sync.Client, as_json: bool) -> None:
    """List the adapters that inferlets may use."""
    table(client.adapters(), ADAPTER_COLUMNS, as_json)


@adapters.command("load")
@click.argument("name")
@click.argument("folder", type=click.Path(path_type=Path))
@_model
@with_client
def load(client: sync.Client, name: str, folder: Path, model: str | None) -> None:
    """Load FOLDER, of the server's machine, as NAME. Only the operator may."""
    client.load_adapter(name, folder.absolute(), model)
    say(f"adapter {name} is loaded")


@adapters.command("unload")
@click.argument("name")
@_model
@with_client
def unload(client: sync.Client, name: str, model: str | None) -> None:
    """Unload NAME, which no instance uses. Only the operator may."""
    client.unload_adapter(name, model)
    say(f"adapter {name} is unloaded")
