"""`pie-py mcp`: MCP servers of one's own inferlets."""

from __future__ import annotations

import shlex

import click

from pie_py.cli.arguments import SuggestingGroup
from pie_py.cli.connect import json_option, repeatable, with_client
from pie_py.cli.console import say, table
from pie_py.client import sync
from pie_py.config.variables import MissingVariable, filled_in

_URL = ("http://", "https://")
COLUMNS = {"name": "NAME", "own": "OWN", "at": "AT"}


def _pairs(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    """Values by names. What was given is not repeated in errors: it may be a secret."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, mark, value = text.partition("=")
        if not mark or not name:
            raise click.BadParameter("give NAME=VALUE")
        try:
            pairs[name] = filled_in(value, name)
        except MissingVariable as error:
            raise click.BadParameter(str(error)) from None
    return pairs


def _words(context: click.Context, argument: click.Parameter, target: str) -> list[str]:
    """A URL alone, or the words of a command."""
    if target.startswith(_URL):
        return [target]
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise click.BadParameter(f"no URL, and as a command it cannot be read: {error}") from None
    if not words:
        raise click.BadParameter("give a URL")
    return words


@click.group("mcp", cls=SuggestingGroup)
def command() -> None:
    """List the MCP servers whose tools your inferlets may call; add your own, and remove them."""


@command.command("list")
@json_option
@with_client
def list_servers(client: sync.Client, as_json: bool) -> None:
    """List the servers that the operator, or you, have registered."""
    table(client.mcp_servers(), COLUMNS, as_json)


@command.command("add")
@click.argument("name")
@click.argument("target", callback=_words)
@repeatable(
    *("--header", "headers", "NAME=VALUE"),
    callback=_pairs,
    help="Sent to a URL with every request. ${VARIABLE} is one of your environment.",
)
@repeatable(
    *("--env", "env", "NAME=VALUE"),
    callback=_pairs,
    help="A variable of a command. ${VARIABLE} is one of your environment.",
)
@with_client
def add(
    client: sync.Client, name: str, target: list[str], headers: dict[str, str], env: dict[str, str]
) -> None:
    """Register the server at TARGET, a URL, as NAME, until the server stops or you remove it.

    Only your inferlets may use it. Its host has to be one that the operator lets inferlets send
    requests to. If the operator allows commands, TARGET may be one, which runs on the server's
    machine.
    """
    if target[0].startswith(_URL):
        client.register_mcp(name, target[0], headers=headers, env=env)
    else:
        client.register_mcp(name, command=target, headers=headers, env=env)
    say(f"MCP server {name} is registered")


@command.command("remove")
@click.argument("name")
@with_client
def remove(client: sync.Client, name: str) -> None:
    """Forget NAME, which you have added; calls under way fail."""
    client.unregister_mcp(name)
    say(f"MCP server {name} is removed")
