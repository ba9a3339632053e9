"""Leases and launches in a real PostgreSQL: who may run what, and whose commits count."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.postgres import Postgres

from pie_cluster.database.launches import Launch, Launches
from pie_cluster.database.leases import Leases
from pie_cluster.database.owners import Owner, Owners
from pie_cluster.database.statements import Connection, DatabaseAway
from pie_control.errors import ApiError
from pie_control.instances.instance import Fence
from pie_control.store.entries import Commit, Get
from pie_control.store.postgres import SharedDatabase
from pie_py.config.services import StoreConfig

pytest.importorskip("psycopg")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


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


def test_one_node_owns_a_user_s_topics_and_only_with_its_lease(address: str) -> None:
    leases, table = Leases(Connection(address)), Owners(Connection(address))

    def owner(number: int) -> Owner:
        life = f"n{number}.1"
        return Owner(leases.hold(life), life, f"tcp://{life}", "key")

    def claimed(by: Owner, user: str = "ann") -> Owner:
        found = table.claim(user, by)
        assert found is not None
        return found

    owners = [owner(number) for number in range(4)]
    together = threading.Barrier(4)

    def claim(number: int) -> Owner | None:
        own = Owners(Connection(address))
        together.wait()
        return own.claim("ann", owners[number])

    with ThreadPoolExecutor(4) as pool:
        told = {one._replace(claim=0) for one in pool.map(claim, range(4)) if one is not None}
    (first,) = told
    assert first in owners
    second, third = [one for one in owners if one != first][:2]
    assert {claimed(one).lease for one in owners} == {first.lease}
    former = claimed(first).claim
    present = claimed(first).claim
    table.release("ann", former)  # late: it has been claimed again
    assert claimed(second).lease == first.lease
    table.release("ann", present)
    assert claimed(second).lease == second.lease
    assert claimed(second, "bob").lease == second.lease
    end(leases, first.lease)
    table.release("ann", claimed(second).claim)
    assert table.claim("ann", first) is None  # by a lease that is over
    assert claimed(third).lease == third.lease
    end(leases, third.lease)
    assert claimed(second).lease == second.lease
    leases.give_back(second.lease)
    other = owner(5)
    assert claimed(other, "bob").lease == other.lease


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
    monkeypatch.setattr("pie_cluster.database.launches.MOST_KEPT", 1)
    lease = leases.hold("n1.2")
    table.record(launch("new-1", lease, keep=True))
    assert table.finish(Fence("new-1", 1, lease), "killed", "")
    with psycopg.connect(address) as sql:
        assert sql.execute("SELECT name FROM launches").fetchall() == [("new-1",)]
