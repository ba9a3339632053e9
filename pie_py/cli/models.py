"""Models and their adapters: `pie-py models`, `adapters`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from pie_py.cli.arguments import SuggestingGroup
from pie_py.cli.connect import At, asked, fail, json_option, server_options, with_client
from pie_py.cli.console import columns, print_text, say, table
from pie_py.cli.names import find_name
from pie_py.client import sync
from pie_py.config.processes import python_command

MODEL_COLUMNS = columns(
    "name state family quantization size max_position=POSITIONS kv_pages adapters source=FROM"
)

_NONE_SERVED = "no model is served at the moment: the worker is starting, or starting again"


@click.command("models")
@click.argument("model", required=False)
@click.option("--traits", is_flag=True, help="Print the traits that a model offers, one a line.")
@click.option("--families", is_flag=True, help="List what can be served, and whose code runs it.")
@server_options
@json_option
def models(model: str | None, traits: bool, families: bool, at: At, as_json: bool) -> None:
    """List the models being served, the default one first, and those on this machine; or MODEL."""
    if families:
        if find_spec("pie_inference") is None:  # the client alone
            fail("which families there are is known where the server is: ask there")
        command = python_command("-m", "pie_inference.loading.check", "--families")
        found: list[dict[str, Any]] = json.loads(subprocess.check_output(command, text=True))
        table(found, {"family": "FAMILY", "code": "CODE"}, as_json)
        return
    served = asked(at, lambda client: client.models(unloaded=True))
    if served == [] and model is not None:  # whether there is such a model is not known yet
        fail(f"{_NONE_SERVED}; ask for {model} again")
    if served == []:
        say(_NONE_SERVED)
    disk = {one["name"]: one for one in _on_disk()}
    rows = [
        {
            "family": one.get("architecture"),
            **disk.pop(one["name"], {}),
            **one,
            "state": _state(one),
        }
        for one in served or ()
    ]
    rows += [] if traits else [{**one, "state": "on disk"} for one in disk.values()]
    if model is not None:
        names = [row["name"] for row in rows]
        name = find_name(model, names)
        rows = [row for row in rows if row["name"] == name]
        if name is None:
            there = ", ".join(dict.fromkeys(names))
            raise click.UsageError(f"no model is called {model!r}; there are: {there}")
    if not traits:
        table(rows, MODEL_COLUMNS, as_json)
    elif rows:
        if (offered := rows[0].get("traits")) is None:
            fail(f"{model} was not loaded yet, which a request or a program has done")
        print_text(json.dumps(offered) if as_json else "\n".join(offered))


def _state(one: Mapping[str, Any]) -> str:
    """Of a model of a server."""
    state = one.get("state", "loaded")
    return "served" if state == "loaded" else "by request" if state == "unloaded" else state


def _on_disk() -> Iterable[dict[str, Any]]:
    if find_spec("pie_py.models") is None:  # the client alone
        return ()
    from pie_py.models.disk import on_disk

    return on_disk()


ADAPTER_COLUMNS = {"model": "MODEL", "name": "NAME"}

_model = click.option(
    "--model", help="The model that it is for; the server's first one by default."
)


@click.group("adapters", cls=SuggestingGroup)
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
    """Unload NAME, of yours or, as the operator, of all. Instances that use it go on."""
    client.unload_adapter(name, model)
    say(f"adapter {name} is unloaded")
