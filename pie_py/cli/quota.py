"""`pie-py quota`: what a user may have, and has."""

from __future__ import annotations

import click

from pie_py.cli.connect import json_option, with_client
from pie_py.cli.console import table
from pie_py.client import sync

COLUMNS = {"user": "USER", "kind": "KIND", "has": "HAS", "may": "MAY HAVE"}


@click.command("quota")
@click.option("--all-users", is_flag=True, help="Of all users; operators only.")
@json_option
@with_client
def command(client: sync.Client, all_users: bool, as_json: bool) -> None:
    """Show what you have of what one user may have. What may be had without a number is lent."""
    users = client.quota(all_users=all_users)
    rows = [{"user": each["user"], **kind} for each in users for kind in each["kinds"]]
    table(users if as_json else rows, COLUMNS, as_json)
