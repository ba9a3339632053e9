"""Durable instances at the command line: `pie-py resume`, `branch`, `calls`."""

from __future__ import annotations

import sys

import click

from pie_py.cli.arguments import PassingCommand, with_files
from pie_py.cli.connect import At, errors_shown, json_option, server_options, with_client
from pie_py.cli.console import table
from pie_py.cli.target import find_target
from pie_py.client import Client, Instance, sync


@click.command("resume")
@click.argument("instance")
@with_client
def resume(client: sync.Client, instance: str) -> None:
    """Have a durable INSTANCE go on that was killed or has failed; `attach` reads from it."""
    client.resume(instance)


@click.command("calls")
@click.argument("instance")
@json_option
@with_client
def calls(client: sync.Client, instance: str, as_json: bool) -> None:
    """List the calls of a durable INSTANCE that are in its journal, for `pie-py branch --at`."""
    found = client.calls(instance)
    while more := client.calls(instance, found[-1]["number"]) if found else []:
        found += more
    table(found, {"number": "CALL", "call": "NAME", "answer": "ANSWER"}, as_json)


@click.command("branch", cls=PassingCommand)
@click.argument("instance")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@server_options
@click.option("--at", "call", required=True, type=click.IntRange(0), help="Of `pie-py calls`.")
@click.option("--source", metavar="TARGET", help="Another program, as of `pie-py run`.")
@click.option("--detach", is_flag=True, help="Print the new instance's id and let it run alone.")
def branch(
    instance: str, args: tuple[str, ...], at: At, call: int, source: str | None, detach: bool
) -> None:
    """Start an instance that has lived as the durable INSTANCE up to and with a call, alive or
    ended; with ARGS in place of its arguments, if there are any.
    """
    from pie_py.cli.run import built
    from pie_py.cli.stream import leave, show_at

    given = with_files(args) or None
    found = None if source is None else find_target(source)
    program = None if found is None else built(found)

    async def begin(client: Client) -> Instance:
        uploaded = source
        if program is not None:
            uploaded = await client.upload(program[0], name=program[1])
        return await client.branch(instance, call, program=uploaded, args=given)

    with errors_shown():
        status = show_at(at, begin, leave, detach=detach, logs=True)
    sys.exit(status)
