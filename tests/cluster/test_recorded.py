"""What a database records while an answer of it is lost or late: real processes and PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.clusters import wait_for
from support.nodes import Node, Nodes
from support.postgres import Postgres
from support.puppets_of_nodes import WorldOfNodes

from pie_py.client.errors import RpcError

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with (
        Postgres() as postgres,
        postgres.database() as address,
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), address, ("ann",)) as nodes,
    ):
        yield nodes


@pytest.fixture(scope="module")
def two(nodes: Nodes) -> list[Node]:
    return nodes.start_all({"n1": {}, "n2": {}})


@contextmanager
def locked(nodes: Nodes, table: str) -> Iterator[Any]:
    """Who writes to a table waits. Gives what waits, as PostgreSQL's process identifiers."""
    with psycopg.connect(nodes.database) as sql, psycopg.connect(nodes.database) as other:
        other.autocommit = True
        sql.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")

        def waiting() -> list[int]:
            asked = other.execute(
                "SELECT pid FROM pg_locks WHERE NOT granted AND relation = %s::regclass", (table,)
            )
            return [pid for (pid,) in asked]

        yield waiting


def test_a_launch_that_may_have_been_recorded_is_not_sent_again(
    nodes: Nodes, two: list[Node]
) -> None:
    with WorldOfNodes(nodes, two) as world, ThreadPoolExecutor(1) as pool:
        ann = world.client(two[0], "ann")
        wait_for(lambda: _is_launched(ann))  # its lease is there
        with locked(nodes, "launches") as waiting:
            launch = pool.submit(ann.launch, "puppet", restart=1)
            wait_for(waiting)
            with psycopg.connect(nodes.database) as sql:
                sql.execute("SELECT pg_terminate_backend(%s)", (waiting()[0],))
            with pytest.raises(RpcError, match=r"node-lost: .* may have been recorded"):
                launch.result()


def test_topics_are_known_here_whose_claimer_was_killed(nodes: Nodes, two: list[Node]) -> None:
    with WorldOfNodes(nodes, two) as world:
        one, other = (world.puppet(node, "ann") for node in two)
        with locked(nodes, "bus_owners") as waiting:
            one.begin("push", "q", "x")
            wait_for(waiting)
            assert world.client(two[0], "ann").kill(one.instance.id)
        assert other.call("push", "q", "y") is None
        other.end()


def _is_launched(client: Any) -> bool:
    try:
        return bool(client.kill(client.launch("puppet", restart=1).id))
    except RpcError:
        return False
