"""`pie-py launch`: starts an instance of an uploaded program."""

from __future__ import annotations

import sys

import click

from pie_py.cli.arguments import PassingCommand, with_files
from pie_py.cli.connect import errors_shown, server_options


@click.command("launch", cls=PassingCommand)
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@server_options
@click.option("--detach", is_flag=True, help="Print the instance's id and let it run alone.")
@click.option(
    "--restart",
    default=0,
    type=click.IntRange(0, 1000),
    help="In a cluster: launch it again, so many times, when its node is lost.",
)
@click.option("--keep", is_flag=True, help="In a cluster: keep its result beyond its node's end.")
def command(
    program: str,
    args: tuple[str, ...],
    endpoint: str | None,
    key: str | None,
    relay: bool | None,
    detach: bool,
    restart: int,
    keep: bool,
) -> None:
    """Launch an uploaded PROGRAM, by name or content hash, and print what it answers.

    Options that are not listed here go to the inferlet; so does everything after `--`. Of ARGS,
    @FILE stands for the text of that file. What it prints or logs goes to standard error. Ctrl-C
    cancels the instance.
    """
    from pie_py.cli.stream import Interrupt, cancel, run_interruptible, show
    from pie_py.client import Client

    given = with_files(args)

    async def main(interrupt: Interrupt) -> int:
        async with Client(endpoint, key, relay=relay) as client:
            instance = await client.launch(
                program, given, detached=detach, restart=restart, keep=keep
            )
            if detach:
                click.echo(instance.id)
                return 0
            return await show(instance, interrupt, cancel, logs=True)

    with errors_shown():
        status = run_interruptible(main)
    sys.exit(status)
