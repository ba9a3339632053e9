"""Leases and launches in a real PostgreSQL: who may run what, and whose commits count."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from support.postgres import Postgres

from pie_cluster.database.statements import Connection, DatabaseAway, Statements
from pie_cluster.database.tables import Launch, Launches, Leases, Topics
from pie_control.api.store.entries import Commit, Get
from pie_control.api.store.postgres import SharedDatabase
from pie_control.errors import ApiError
from pie_control.instances.instance import Fence
from pie_py.config.services import StoreConfig

pytest.importorskip("psycopg")


@pytest.fixture
def address(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as address:
        SharedDatabase(StoreConfig(database=address)).close()
        yield address


def launch(name: str, lease: int, *, runs: int = 2, keep: bool = False) -> Launch:
    return Launch(name, "ann", "0" * 64, ["a\0b", "é"], runs, 1, lease, "n1.1", keep)


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
    end(table, lease)
    assert not table.renew(lease)
    assert table.hold("n1.1") > lease  # the same life of another cluster is another lease


def test_topics_are_called_and_kept_with_a_lease_alone(address: str) -> None:
    """What an instance has goes with its node's lease; what is queued stays."""
    leases, table = Leases(Connection(address)), Topics(Connection(address))
    first, second, late = (leases.hold(f"n{number}.1") for number in range(3))
    limits = (4, 6, 10_000)

    def call(name: str, lease: int, *more: object) -> Any:
        return table.call(name, "ann", f"a-1@n{lease}", lease, 10_000, *more)

    def held() -> object:
        return table.waits(second).get((f"a-1@n{second}", 1))

    call("push", first, b"q\0", "a\0é".encode(), 259, *limits)
    call("pull", first, 1, b"q\0", *limits[1:])
    call("pull", second, 1, b"q\0", *limits[1:])
    assert table.waits(first) == {(f"a-1@n{first}", 1): True}
    assert held() is False
    end(leases, first)
    assert held() is True
    for lease in (first, 12345):
        with pytest.raises(DatabaseAway, match="the lease of the node is over") as refused:
            call("take", lease, 1)
        assert not refused.value.may_be_done
    leases.give_back(second)
    with pytest.raises(DatabaseAway, match="the lease of the node is over"):
        call("take", second, 1)
    call("pull", late, 7, b"q\0", *limits[1:])
    assert bytes(call("take", late, 7)).decode() == "a\0é"
    assert call("take", late, 7) is None
    table.call("leave", f"a-1@n{late}", late, 0)
    assert not rows(address)


def test_calls_that_may_be_made_again_have_one_effect(address: str) -> None:
    lease, table = Leases(Connection(address)).hold("n1.1"), Topics(Connection(address))
    who = ("ann", "a-1@n1.1", lease, 10_000)
    for _ in range(2):
        table.call("subscribe", *who, 1, b"t", 1, 1, 4, 10_000)
        table.call("next", *who, 2, 1)
        table.call("pull", *who, 3, b"q", 4, 10_000)
    assert table.call("broadcast", *who, b"t", b"x", 257) == 1
    assert table.waits(lease) == {("a-1@n1.1", 2): True, ("a-1@n1.1", 3): False}
    for _ in range(2):
        table.call("cancel", *who, [2, 3])
        table.call("unsubscribe", *who, 1)
        table.call("leave", who[1], lease, 0)
    assert not rows(address)


def test_queues_that_are_idle_longest_go_first(address: str) -> None:
    lease, table = Leases(Connection(address)).hold("n1.1"), Topics(Connection(address))
    for user in ("ann", "bob", "cem"):
        who = (user, f"{user}@n1.1", lease, 10_000)
        table.call("push", *who, b"q", b"x", 257, 4, 4, 10_000)
        if user != "cem":  # it has an instance
            table.call("leave", who[1], lease, 300)
    table.call("leave", "nothing@n1.1", lease, 300)
    assert rows(address, "users") == 2

    def taken(user: str) -> object:
        who = (user, f"{user}@n1.1", lease, 10_000)
        table.call("pull", *who, 1, b"q", 4, 10_000)
        return table.call("take", *who, 1)

    assert taken("ann") is None
    assert (taken("bob"), taken("cem")) == (b"x", b"x")


def rows(address: str, *tables: str) -> int:
    """Of topics in the database."""
    found = Statements(Connection(address))
    names = tables or ("users", "members", "boxes", "waits", "messages")
    return sum(found._all(f"SELECT count(*) FROM bus_{name}", ())[0][0] for name in names)


def test_a_launch_runs_once_more_and_its_former_run_changes_nothing(address: str) -> None:
    table, leases = Launches(Connection(address)), Leases(Connection(address))
    store = SharedDatabase(StoreConfig(database=address))

    def commit(fence: Fence) -> object:
        (result,) = store.run([Commit("ann", (), (), (("k", str(fence.run).encode()),), (), fence)])
        return result.code if isinstance(result, ApiError) else result

    first, other = leases.hold("n1.1"), leases.hold("n2.1")
    assert table.record(launch("a-1", first))
    assert not table.record(launch("a-1", other))
    former = Fence("a-1", 1, first)
    assert commit(former) is None
    assert not table.claim("a-1", 1, other, "n2.1")  # it runs
    end(leases, first)
    assert commit(former) == "cancelled"
    assert not table.finish(former, "finished", "late")
    (waits,) = table.waiting()
    assert (waits.args, waits.run, waits.life) == (["a\0b", "é"], 1, "n1.1")
    claimed = threading.Barrier(4)

    def claim(_: int) -> bool:
        own = Launches(Connection(address))
        claimed.wait()
        return own.claim("a-1", 1, other, "n2.1")

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(claim, range(4))) == [False, False, False, True]
    assert commit(former) == "cancelled"
    assert commit(Fence("a-1", 2, other)) is None
    assert store.run([Get("ann", "k")]) == [b"2"]
    end(leases, other)
    assert not table.waiting()  # both runs are lost
    table.give_up()
    assert table.find("a-1") is None
    store.close()


def test_a_run_that_has_not_begun_does_not_count(address: str) -> None:
    table, leases = Launches(Connection(address)), Leases(Connection(address))
    first, other = leases.hold("n1.1"), leases.hold("n2.1")
    table.record(launch("a-1", first))
    table.record(launch("b-1", first))
    table.undo(Fence("b-1", 1, first))
    assert table.find("b-1") is None
    end(leases, first)
    assert table.claim("a-1", 1, other, "n2.1")
    table.undo(Fence("a-1", 2, other))
    (waits,) = table.waiting()
    assert (waits.name, waits.run) == ("a-1", 1)
    with pytest.raises(DatabaseAway, match="foreign key"):
        table.claim("a-1", 1, first, "n1.1")  # by a lease that is over


def test_results_are_kept_if_they_are_to_be(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, leases = Launches(Connection(address)), Leases(Connection(address))
    lease = leases.hold("n1.1")
    for name, keep in (("gone-1", False), ("kept-1", True)):
        table.record(launch(name, lease, runs=1, keep=keep))
        for _ in range(2):  # as after a connection that was lost with the answer
            assert table.finish(Fence(name, 1, lease), "finished", "a\0é")
    assert table.find("gone-1") is None
    found = table.find("kept-1")
    assert found is not None
    assert (found.state, found.text, found.lease) == ("finished", "a\0é", None)
    table.record(launch("lost-1", lease, runs=1, keep=True))
    end(leases, lease)
    table.give_up()
    lost = table.find("lost-1")
    assert lost is not None
    assert (lost.state, lost.text[:28]) == ("failed", "node-lost: node n1.1 has end")
    monkeypatch.setattr("pie_cluster.database.tables.MOST_KEPT", 1)
    lease = leases.hold("n1.2")
    table.record(launch("new-1", lease, keep=True))
    assert table.finish(Fence("new-1", 1, lease), "killed", "")
    with psycopg.connect(address) as sql:
        assert sql.execute("SELECT name FROM launches").fetchall() == [("new-1",)]
