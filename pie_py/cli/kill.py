"""`pie-py kill`: ends instances."""

from __future__ import annotations

import click

from pie_py.cli.connect import with_client
from pie_py.cli.console import say
from pie_py.client import sync


@click.command("kill")
@click.argument("instances", nargs=-1, required=True, metavar="INSTANCE...")
@with_client
def command(client: sync.Client, instances: tuple[str, ...]) -> None:
    """End one or more instances."""
    for instance in instances:
        alive = client.kill(instance)
        say(f"{instance} {'is killed' if alive else 'had ended already'}")
