"""`pie-py attach`: reads from an instance that runs."""

from __future__ import annotations

import sys

import click

from pie_py.cli.connect import errors_shown, server_options


@click.command("attach")
@click.argument("instance")
@server_options
def command(instance: str, endpoint: str | None, key: str | None, relay: bool | None) -> None:
    """Print what INSTANCE sends and what has not been read yet, then its result.

    Ctrl-C detaches and lets it run.
    """
    from pie_py.cli.stream import Interrupt, leave, run_interruptible, show
    from pie_py.client import Client

    async def main(interrupt: Interrupt) -> int:
        async with Client(endpoint, key, relay=relay) as client:
            return await show(await client.attach(instance), interrupt, leave)

    with errors_shown():
        status = run_interruptible(main)
    sys.exit(status)
