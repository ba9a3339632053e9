"""`pie-py logs`: what an instance logged."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import click

from pie_py.cli.connect import json_option, with_client
from pie_py.client import sync

POLL_SECONDS = 0.3


@click.command("logs")
@click.argument("instance")
@click.option("--follow", "-f", is_flag=True, help="Go on until the instance ends.")
@json_option
@with_client
def command(client: sync.Client, instance: str, follow: bool, as_json: bool) -> None:
    """Print the lines that INSTANCE logged; the server keeps the newest thousand."""
    after = 0
    with suppress(KeyboardInterrupt):
        while True:
            found = client.logs(instance, after)
            for line in found["lines"]:
                click.echo(json.dumps(line, ensure_ascii=False) if as_json else _text(line))
            after = found["next"]
            if not follow or found["ended"]:
                return
            time.sleep(POLL_SECONDS)


def _text(line: dict[str, object]) -> str:
    seconds, rest = divmod(int(str(line["time_ns"])), 1_000_000_000)
    clock = time.strftime("%H:%M:%S", time.localtime(seconds))
    return f"{clock}.{rest // 1_000_000:03d} {line['level']:<7} {line['text']}"
