"""What durable instances change in the store, whichever database that is."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.postgres import Postgres
from support.servers import NO_MODEL, Server

WRITES = b"""\
from inferlet import store

async def main(count: int = 3) -> str:
    for number in range(count):
        await store.set("key", str(number))
    return (await store.get("key")).decode()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        yield Path(name)


def test_one_server_may_have_its_store_in_a_database(folder: Path, postgres: Postgres) -> None:
    """And its journals in files."""
    with (
        postgres.database() as address,
        Server(folder, store={"database": address}, **NO_MODEL) as server,
        server.client() as client,
    ):
        program = client.upload(WRITES, "writes")
        assert client.launch(program).result() == "2"
        assert client.launch(program, durable=True).result() == "2"
