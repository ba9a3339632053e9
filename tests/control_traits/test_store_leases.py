"""Leases and journals in a real PostgreSQL: who may write what, and whose commits count."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from support.postgres import Postgres

from pie_cluster.database.statements import Connection
from pie_cluster.database.tables import Journals, Leases
from pie_cluster.node.journals import SharedShelf
from pie_control.api.store.entries import Commit, Get
from pie_control.api.store.postgres import OPTIONS, SharedDatabase
from pie_control.errors import ApiError
from pie_py.config.services import StoreConfig

psycopg = pytest.importorskip("psycopg")


@pytest.fixture
def address(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as address:
        SharedDatabase(StoreConfig(database=address)).close()
        yield address


def end(table: Leases, lease: int) -> None:
    """A lease runs out, and what ran under it is taken over."""
    table.renew(lease, -1.0)
    for number, until in table.expired():
        assert table.take_over(number, until) == (number == lease)


def test_a_lease_that_is_renewed_cannot_be_taken(address: str) -> None:
    table = Leases(Connection(address))
    lease = table.hold("n1.1", -1.0)
    ((number, until),) = table.expired()
    assert number == lease
    assert table.renew(lease)
    assert not table.take_over(lease, until)
    assert not table.expired()
    table.give_back(lease)
    assert not table.renew(lease)
    assert table.hold("n1.1") > lease  # the same life of another cluster is another lease


def test_both_ends_of_a_connection_notice_that_it_is_cut_off(address: str) -> None:
    """The server's end would stay for two hours, with its place among the connections."""
    ask = "SELECT name, reset_val FROM pg_settings WHERE source = 'client' AND name LIKE 'tcp%'"
    with psycopg.connect(address, **OPTIONS) as sql:
        assert dict(sql.execute(ask).fetchall()) == {
            "tcp_keepalives_idle": "5",
            "tcp_keepalives_interval": "2",
            "tcp_user_timeout": "10000",
        }


def test_a_journal_is_written_under_the_present_lease_alone(address: str) -> None:
    table, leases = Journals(Connection(address)), Leases(Connection(address))
    store = SharedDatabase(StoreConfig(database=address))

    def commit(lease: int, call: int, value: bytes) -> object:
        writes = (("k", value),)
        (result,) = store.run([Commit("ann", (), (), writes, (), lease, ("a-1@n1.1", call))])
        return result.code if isinstance(result, ApiError) else result

    first, other = leases.hold("n1.1"), leases.hold("n2.1")
    for _ in range(2):  # as after a connection that was lost with the answer
        assert table.create("a-1@n1.1", "ann", first, "n1.1", b"head")
        assert table.append(first, [("a-1@n1.1", 4, b"one")])
        assert commit(first, 1, b"1") is None
    assert not table.claim(other, "n2.1", 9)  # it is held
    end(leases, first)
    assert not table.append(first, [("a-1@n1.1", 7, b"late")])
    assert not table.create("b-1@n1.1", "ann", first, "n1.1", b"head")
    assert commit(first, 2, b"late") == "cancelled"
    claimed = threading.Barrier(4)

    def claim(_: int) -> list[str]:
        own = Journals(Connection(address))
        claimed.wait()
        return own.claim(other, "n2.1", 9)

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(claim, range(4))) == [[], [], [], ["a-1@n1.1"]]
    assert table.append(other, [("a-1@n1.1", 7, b"two")])
    assert table.read("a-1@n1.1") == b"headonetwo"
    assert commit(other, 1, b"again") is None  # it was done
    assert store.run([Get("ann", "k")]) == [b"1"]
    store.close()


async def test_what_a_node_has_no_room_for_another_one_takes(address: str) -> None:
    table, leases = Journals(Connection(address)), Leases(Connection(address))
    one, other = leases.hold("n1.1"), leases.hold("n2.1")
    parts: Any = SimpleNamespace(number=one), "n1.1", None, None, None, time.time_ns
    shelf = SharedShelf(Connection(address), *parts)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shelf.change)
            await shelf.create("a-1@n1.1", "ann", [{}])
            await shelf.release("a-1@n1.1")
            while table.claim(other, "n2.1", 9) != ["a-1@n1.1"]:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


def test_an_end_is_known_until_it_is_old(address: str) -> None:
    table, leases = Journals(Connection(address)), Leases(Connection(address))
    lease, other = leases.hold("n1.1"), leases.hold("n2.1")
    table.create("a-1@n1.1", "ann", lease, "n1.1", b"head")
    table.append(lease, [("a-1@n1.1", 4, b"end")])
    table.end("a-1@n1.1", other, "failed", "not its own")
    assert table.find("a-1@n1.1") == ("ann", "n1.1", True, None, "")
    table.end("a-1@n1.1", lease, "finished", "a\0é")
    leases.end("n1.1")
    assert table.find("a-1@n1.1") == ("ann", "n1.1", False, "finished", "a\0é")
    assert table.claim(other, "n2.1", 9) == ["a-1@n1.1"]  # its client may read yet
    third = leases.hold("n3.1")
    assert not table.rewind("a-1@n1.1", third, "n3.1", b"head")  # another node has it
    assert table.rewind("a-1@n1.1", other, "n2.1", b"head")
    assert table.read("a-1@n1.1") == b"head"
    assert table.find("a-1@n1.1") == ("ann", "n2.1", True, None, "a\0é")
    table.end("a-1@n1.1", other, "finished", "b")
    table.drop_old(60.0)
    assert table.find("a-1@n1.1") is not None
    table.drop_old(-1.0)
    assert table.find("a-1@n1.1") is None
    assert table.read("a-1@n1.1") is None
