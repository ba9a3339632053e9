"""Instances: `pie-py launch`, `ps`, `attach`, `send`, `logs`, `kill`."""

from __future__ import annotations

import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from pie_py.cli.arguments import PassingCommand, TextCommand, goal_options, with_files
from pie_py.cli.connect import (
    EXIT_FAILED,
    FILE,
    At,
    errors_shown,
    json_option,
    server_options,
    told_of_builds,
    with_client,
)
from pie_py.cli.console import LOOK_SECONDS, columns, print_text, say, table
from pie_py.client import Client, Instance, RpcError, sync

COLUMNS = columns(
    "id state user created_ns=LAUNCHED cpu_ms generated_tokens=TOKENS most_pages=PAGES "
    "attached late args"
)


@click.command("ps")
@click.option("--all", "ended", is_flag=True, help="Also those that ended lately.")
@click.option("--all-users", is_flag=True, help="Those of all users; operators only.")
@json_option
@with_client
def ps(client: sync.Client, ended: bool, all_users: bool, as_json: bool) -> None:
    """List the instances that run."""
    columns = {**COLUMNS, "ended_ns": "ENDED", "reason": "REASON"} if ended else COLUMNS
    table(client.instances(ended=ended, all_users=all_users), columns, as_json)


@click.command("launch", cls=PassingCommand)
@click.argument("program")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@server_options
@click.option("--detach", is_flag=True, help="Print the instance's id and let it run alone.")
@click.option("--durable", is_flag=True, help="It goes on after a crash of the server.")
@goal_options
def launch(
    program: str, args: tuple[str, ...], at: At, detach: bool, durable: bool, goal: dict[str, Any]
) -> None:
    """Launch an uploaded PROGRAM, by name or content hash, and print what it answers.

    Options that are not listed here go to the inferlet; so does everything after `--`. Of ARGS,
    @FILE stands for the text of that file. What it prints or logs goes to standard error. Lines of
    standard input are messages to it, once it waits for one, and an empty one is the end. Ctrl-C
    cancels the instance.
    """
    from pie_py.cli.stream import cancel, leave, show_at

    given = with_files(args)

    async def begin(client: Client) -> Instance:
        with told_of_builds(at):
            return await client.launch(program, given, detached=detach, durable=durable, **goal)

    with errors_shown():
        status = show_at(at, begin, leave if durable else cancel, detach=detach, logs=True)
    sys.exit(status)


@click.command("attach")
@click.argument("instance")
@server_options
def attach(instance: str, at: At) -> None:
    """Print what INSTANCE sends and what has not been read yet, then its result.

    Lines of standard input are messages to it, once it waits for one. Ctrl-C detaches and lets it
    run.
    """
    from pie_py.cli.stream import leave, show_at

    with errors_shown():
        status = show_at(at, lambda client: client.attach(instance), leave)
    sys.exit(status)


@click.command("send", cls=TextCommand)
@click.argument("instance")
@click.argument("text", nargs=-1, type=click.UNPROCESSED)
@click.option("--file", type=FILE, help="Send the bytes of a file instead, such as an image.")
@with_client
def send(client: sync.Client, instance: str, text: tuple[str, ...], file: Path | None) -> None:
    """Send a message to INSTANCE: TEXT, or a file; `pie-py attach INSTANCE` shows its answers."""
    if bool(text) == (file is not None):
        raise click.UsageError("one message is wanted: TEXT, or --file FILE")
    client.send(instance, " ".join(text) if file is None else file.read_bytes())


@click.command("logs")
@click.argument("instance")
@click.option("--follow", "-f", is_flag=True, help="Go on until the instance ends.")
@json_option
@with_client
def logs(client: sync.Client, instance: str, follow: bool, as_json: bool) -> None:
    """Print the lines that INSTANCE logged; the server keeps the newest thousand."""
    after = 0
    with suppress(KeyboardInterrupt):
        while True:
            found = client.logs(instance, after)
            for line in found["lines"]:
                print_text(json.dumps(line, ensure_ascii=False) if as_json else _log_line(line))
            after = found["next"]
            if not follow or found["ended"]:
                return
            time.sleep(LOOK_SECONDS)


def _log_line(line: dict[str, object]) -> str:
    seconds, rest = divmod(int(str(line["time_ns"])), 1_000_000_000)
    clock = time.strftime("%H:%M:%S", time.localtime(seconds))
    return f"{clock}.{rest // 1_000_000:03d} {line['level']:<7} {line['text']}"


@click.command("kill")
@click.argument("instances", nargs=-1, required=True, metavar="INSTANCE...")
@with_client
def kill(client: sync.Client, instances: tuple[str, ...]) -> None:
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
