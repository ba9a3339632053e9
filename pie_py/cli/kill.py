"""`pie-py kill`: ends instances."""

from __future__ import annotations

import sys

import click

from pie_py.cli.connect import EXIT_FAILED, with_client
from pie_py.cli.console import say
from pie_py.client import RpcError, sync


@click.command("kill")
@click.argument("instances", nargs=-1, required=True, metavar="INSTANCE...")
@with_client
def command(client: sync.Client, instances: tuple[str, ...]) -> None:
    """End one or more instances. One that cannot be ended does not keep the others from it."""
    failed = False
    for instance in instances:
        try:
            alive = client.kill(instance)
        except RpcError as error:
            say(f"error: {error}")
            failed = True
        else:
            say(f"{instance} {'is killed' if alive else 'had ended already'}")
    if failed:
        sys.exit(EXIT_FAILED)
