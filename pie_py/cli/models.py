"""`pie-py models`: what is served."""

from __future__ import annotations

import json
import sys

import click

from pie_py.cli.connect import EXIT_FAILED, json_option, with_client
from pie_py.cli.console import say, table
from pie_py.client import sync

COLUMNS = {
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
def command(client: sync.Client, model: str | None, traits: bool, as_json: bool) -> None:
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
        table(served, COLUMNS, as_json)
    elif served:
        offered = served[0]["traits"]
        click.echo(json.dumps(offered) if as_json else "\n".join(offered))
