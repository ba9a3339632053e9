"""Users: `pie-py keys`, `quota`, `usage`."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pie_py.cli.arguments import SuggestingGroup
from pie_py.cli.connect import FILE, FOLDER, NEW_FILE, fail, json_option, options, with_client
from pie_py.cli.console import columns, in_binary, say, table
from pie_py.cli.server_config import server_config
from pie_py.client import sync
from pie_py.config.keys import ClientKey, KeyProblem, KeyStore

DAY = 24 * 3600.0  # in seconds


def in_data_folder(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that say where the server keeps its data, and passes the `folder`."""

    @options(
        click.option(
            *("--config", "file"),
            type=FILE,
            help="The server's TOML file, which may name its data folder.",
        ),
        click.option(
            "--data-folder", type=FOLDER, help="The server's data folder, if it is not the default."
        ),
    )
    @functools.wraps(function)
    def wrapped(*args: Any, data_folder: Path | None, file: Path | None, **given: Any) -> None:
        function(*args, folder=data_folder or server_config(file).data_folder, **given)

    return wrapped


# Of a key that is made.
_key_options = options(
    in_data_folder,
    click.option(
        *("--output", "-o"),
        type=NEW_FILE,
        help="The user's key file; USER.key.json here by default.",
    ),
    click.option(
        "--days",
        type=click.FloatRange(min=0, min_open=True),
        help="After which the key is refused.",
    ),
    click.option("--name", default="", help="The key's, one of several of this user."),
    click.argument("user"),
)


@click.group("keys", cls=SuggestingGroup)
def keys() -> None:
    """Manage the keys of users who connect from other machines.

    Run it on the server's machine. A server that runs takes changes in at once.
    """


@keys.command("add")
@_key_options
def add(**given: Any) -> None:
    """Make a key for USER and print its file, which is all that the user needs.

    A further key of the same user wants a --name.
    """
    _hand_over(**given, rotate=False)


@keys.command("rotate")
@_key_options
def rotate(**given: Any) -> None:
    """Give USER another key, in the place of the one that there is, and print its file.

    Connections with the old one end within seconds; what the user has on the server stays.
    """
    _hand_over(**given, rotate=True)


def _hand_over(
    user: str, name: str, days: float | None, output: Path | None, folder: Path, rotate: bool
) -> None:
    output = output or Path(f"{user}{name and '.'}{name}.key.json")
    with _problems_shown():
        if output.exists():
            raise KeyProblem(f"{output} exists already; choose another with --output")
        _make_key(KeyStore(folder), user, name, days, output, rotate=rotate)
    say(f"give {output} to {user}, over a safe channel, and to no one else:")
    say(f"    pie-py ps --endpoint tcp://HOST:PORT --key {output}")
    say(f"`pie-py keys http {output}` prints the user's API key for HTTP")
    click.echo(str(output))


@keys.command("http")
@click.argument("file", type=FILE)
def http(file: Path) -> None:
    """Print the API key for HTTP of the user whose key FILE this is."""
    from pie_py.config.keys import api_key

    with _problems_shown():
        click.echo(api_key(ClientKey.read(file)))


@keys.command("remove")
@click.argument("user")
@click.option("--name", help="Of the key, if others of this user stay.")
@in_data_folder
def remove(user: str, name: str | None, folder: Path) -> None:
    """Forget USER's keys. Connections with them end within seconds."""
    with _problems_shown():
        KeyStore(folder).remove(user, name)


KEY_COLUMNS = {"user": "USER", "name": "NAME", "until": "UNTIL", "used_ns": "LAST USE"}


@keys.command("list")
@in_data_folder
@json_option
def list_users(folder: Path, as_json: bool) -> None:
    """Print the users' keys, until when each lets them in, and when it last did."""
    with _problems_shown():
        store = KeyStore(folder)
        rows = [
            {
                "user": key.user,
                "name": key.name or None,
                "until": key.date or None,
                "used_ns": store.last_use(key.public),
            }
            for key in store.admitted()
        ]
    table(rows, KEY_COLUMNS, as_json)


def _make_key(
    store: KeyStore, user: str, name: str, days: float | None, output: Path, *, rotate: bool
) -> None:
    """Makes a key and its file, or neither: a key whose file is nowhere is of no use, and in the
    way. Raises `KeyProblem` for a bad name, one that has a key already, or a file that cannot be
    written.
    """
    key = store.make(user, name, rotate=rotate)
    try:
        key.write(output)
    except OSError as error:
        raise KeyProblem(
            f"{output} cannot be written, so {user} has got no key: {error.strerror}; choose"
            " another file with --output"
        ) from None
    try:
        store.admit(key, name, math.inf if days is None else time.time() + days * DAY)
    except OSError:
        output.unlink()
        raise


@contextmanager
def _problems_shown() -> Iterator[None]:
    try:
        yield
    except KeyProblem as error:
        fail(error)
    except OSError as error:
        fail(
            f"{error.filename or 'the data folder'} cannot be used: {error.strerror}; mend that, or"
            " choose another folder with --data-folder"
        )


USAGE_COLUMNS = columns(
    "day user program tag instances=RUNS prompt_tokens=PROMPT generated_tokens=GENERATED "
    "cached_tokens=CACHED page_seconds=PAGE-S cpu_seconds=CPU-S tool_seconds=TOOL-S"
)


@click.command("usage")
@click.option("--days", default=1, type=click.IntRange(1, 400), help="The last ones, with today.")
@click.option("--all-users", is_flag=True, help="Of all users; operators only.")
@json_option
@with_client
def usage(client: sync.Client, days: int, all_users: bool, as_json: bool) -> None:
    """Show what programs have used, by day (UTC), program and tag."""
    rows = client.usage(days, all_users=all_users)
    for row in () if as_json else rows:
        row |= {name: f"{value:.6g}" for name, value in row.items() if isinstance(value, float)}
    table(rows, USAGE_COLUMNS, as_json)


QUOTA_COLUMNS = {"user": "USER", "kind": "KIND", "has": "HAS", "may": "MAY HAVE"}


@click.command("quota")
@click.option("--all-users", is_flag=True, help="Of all users; operators only.")
@json_option
@with_client
def quota(client: sync.Client, all_users: bool, as_json: bool) -> None:
    """Show what you have of what one user may have. What may be had without a number is lent."""
    users = client.quota(all_users=all_users)
    rows = [{"user": each["user"], **kind} for each in users for kind in each["kinds"]]
    for row in () if as_json else rows:
        if "bytes" in row["kind"]:
            row |= {k: in_binary(row[k]) for k in ("has", "may") if row[k] is not None}
    table(users if as_json else rows, QUOTA_COLUMNS, as_json)
