"""`pie-py ps`: what runs."""

from __future__ import annotations

import click

from pie_py.cli.connect import json_option, with_client
from pie_py.cli.console import table
from pie_py.client import sync

COLUMNS = {
    "id": "ID",
    "state": "STATE",
    "user": "USER",
    "created_ns": "LAUNCHED",
    "cpu_ms": "CPU MS",
    "pages": "PAGES",
    "attached": "ATTACHED",
    "args": "ARGS",
}


@click.command("ps")
@click.option("--all", "ended", is_flag=True, help="Also those that ended lately.")
@click.option("--all-users", is_flag=True, help="Those of all users; operators only.")
@json_option
@with_client
def command(client: sync.Client, ended: bool, all_users: bool, as_json: bool) -> None:
    """List the instances that run."""
    columns = {**COLUMNS, "reason": "REASON"} if ended else COLUMNS
    table(client.instances(ended=ended, all_users=all_users), columns, as_json)
