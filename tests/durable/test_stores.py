"""What durable instances change in the store, whichever database that is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from support.postgres import Postgres
from support.servers import NO_MODEL, Server, until

WRITES = b"""\
from inferlet import store

async def main(count: int = 3) -> str:
    for number in range(count):
        await store.set("key", str(number))
    return (await store.get("key")).decode()
"""


def test_one_server_may_have_its_store_in_a_database(
    short_folder: Path, postgres: Postgres
) -> None:
    """And its journals in files."""
    with (
        postgres.database() as address,
        Server(short_folder, store={"database": address}, **NO_MODEL) as server,
        server.client() as client,
    ):
        program = client.upload(WRITES, "writes")
        assert client.launch(program).result() == "2"
        assert client.launch(program, durable=True).result() == "2"


def test_what_is_noted_of_calls_goes_with_the_journal(short_folder: Path) -> None:
    """A row of each change of the store: no one's quota counts them."""
    with Server(short_folder, **NO_MODEL) as server, server.client() as client:
        program = client.upload(WRITES, "writes")
        assert client.launch(program, ["--count", "40"], durable=True).result() == "39"
    with (
        sqlite3.connect(short_folder / "data/store.sqlite3") as sql,
        Server(short_folder, durable={"keep_seconds": 0.01}, **NO_MODEL),
    ):
        until(lambda: sql.execute("SELECT count(*) FROM done").fetchone() == (0,))
    assert not list((short_folder / "data/journals").glob("*.journal"))
