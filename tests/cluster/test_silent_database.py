"""A database that lets connect and never answers."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trio

from pie_cluster.config import MemberConfig
from pie_cluster.directory.server import DirectoryServer
from pie_py.config.services import StoreConfig

pytest.importorskip("psycopg")


@pytest.mark.nightly
async def test_a_gateway_waits_for_a_database_that_does_not_answer(tmp_path: Path) -> None:
    from pie_cluster.database.statements import ANSWER_SECONDS
    from pie_cluster.gateway.journals import DurableInstances

    directory = DirectoryServer(MemberConfig(folder=tmp_path / "lives"), trio.current_time)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        address = f"host=127.0.0.1,127.0.0.1 port={port},{port} dbname=pie"
        durable = DurableInstances(StoreConfig(database=address), directory)
        with trio.move_on_after(ANSWER_SECONDS + 1) as scope:
            await durable.run()
    assert scope.cancelled_caught
