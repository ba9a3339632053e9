"""Topics and work queues of users whose instances are on several nodes: real processes, sockets and
PostgreSQL.
"""

from __future__ import annotations

import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import run_state_machine_as_test
from support import bus_rules
from support.bus_rules import MAILBOX_BYTES, MESSAGING, STEPS, take
from support.clusters import Wire, wait_for
from support.instances import failure
from support.nodes import Node, Nodes
from support.postgres import Postgres
from support.puppets_of_nodes import InstanceLost, Puppet, WorldOfNodes

from pie_control.errors import ApiError
from pie_py.client.errors import RpcError
from pie_py.client.sync import Client

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.slow

FEW = settings(
    max_examples=10, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
LIMITS = {"mailbox_bytes": MAILBOX_BYTES}
USERS = ("ann", "bob", "cem", "dan", "eve", "fay")
AFTER = 100  # messages that are pushed after a fault


@pytest.fixture(scope="module")
def nodes(postgres: Postgres) -> Iterator[Nodes]:
    config: dict[str, Any] = {"messaging": MESSAGING, "limits": LIMITS}
    quota = {"share": 1.0, "launches": 1e6}
    with (
        postgres.database() as address,
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), address, USERS, quota=quota, **config) as nodes,
    ):
        yield nodes


@pytest.fixture(scope="module")
def ways(nodes: Nodes, postgres: Postgres) -> Iterator[tuple[Wire, Wire]]:
    """To the gateway, and to the database."""
    with (
        Wire(nodes.gateway.replace("0.0.0.0", "127.0.0.1")) as directory,
        Wire(postgres.socket) as data,
    ):
        yield directory, data


@pytest.fixture(scope="module")
def started(nodes: Nodes, ways: tuple[Wire, Wire]) -> dict[str, Node]:
    """All nodes: two that stay, one that takes one instance, and three that are to be lost.

    Two of those will not hear from the directory that their life is over: they would end.
    """
    way, way_to_data = ways
    lives: dict[str, dict[str, Any]] = {
        "n1": {},
        "n2": {},
        "killed": {},
        "stopped": {"gateway": way.endpoint},
        "cut": {"gateway": way.endpoint, "database": way_to_data.to(nodes.database)},
    }
    return dict(zip(lives, nodes.start_all(lives), strict=True))


@pytest.fixture(scope="module")
def two(started: dict[str, Node]) -> list[Node]:
    return [started["n1"], started["n2"]]


@pytest.fixture(scope="module")
def world(nodes: Nodes, two: list[Node]) -> Iterator[WorldOfNodes]:
    with WorldOfNodes(nodes, two) as world:
        yield world


@pytest.mark.parametrize("rule", bus_rules.RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[bus_rules.World], None], world: WorldOfNodes) -> None:
    rule(world)


def test_a_work_queue_does_as_on_one_server(world: WorldOfNodes) -> None:
    class OfNodes(bus_rules.WorkQueue):
        def __init__(self) -> None:
            self.world = world
            super().__init__()

    run_state_machine_as_test(OfNodes, settings=FEW)


def test_every_subscriber_gets_everything_once_and_in_order(world: WorldOfNodes) -> None:
    @FEW
    @given(STEPS)
    def test(steps: list[tuple[int, int]]) -> None:
        bus_rules.every_subscriber_gets_everything_once_and_in_order(world, steps)

    test()


# What the database records while an answer of it is lost or late


@contextmanager
def locked(nodes: Nodes, table: str, query: str) -> Iterator[Callable[[], list[int]]]:
    """Who writes to a table waits. Gives who would by a query, as PostgreSQL's process identifiers.

    What ended before may still be removing a row of its own.
    """
    with psycopg.connect(nodes.database) as sql, psycopg.connect(nodes.database) as other:
        other.autocommit = True
        sql.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")

        def waiting() -> list[int]:
            asked = other.execute(
                "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted"
                " AND relation = %s::regclass AND query LIKE %s",
                (table, f"%{query}%"),
            )
            return [pid for (pid,) in asked]

        yield waiting


def test_a_durable_launch_whose_answer_is_lost_is_launched_once(
    nodes: Nodes, two: list[Node], world: WorldOfNodes
) -> None:
    ann = world.client(two[0], "ann")
    wait_for(lambda: _is_launched(ann))  # its lease is there
    with ThreadPoolExecutor(1) as pool, locked(nodes, "journals", "WITH held") as waiting:
        launch = pool.submit(partial(ann.launch, "puppet", durable=True))
        wait_for(lambda: bool(waiting()))
        with psycopg.connect(nodes.database) as sql:
            sql.execute("SELECT pg_terminate_backend(%s)", (waiting()[0],))
    instance = launch.result()
    assert [one["id"] for one in ann.instances()].count(instance.id) == 1
    instance.cancel()
    assert [one["id"] for one in ann.instances()].count(instance.id) == 0


def test_a_call_whose_instance_is_killed_leaves_nothing(
    nodes: Nodes, two: list[Node], world: WorldOfNodes
) -> None:
    one, other = (world.puppet(node, "fay") for node in two)
    with locked(nodes, "bus_members", "bus_subscribe") as waiting:
        one.begin("subscribe", "t")
        wait_for(lambda: bool(waiting()))
        assert world.client(two[0], "fay").kill(one.instance.id)
    wait_for(lambda: other.call("broadcast", "t", "x") == 0)
    other.end()
    assert not world.left()


def _is_launched(client: Client) -> bool:
    try:
        return bool(client.kill(client.launch("puppet", durable=True).id))
    except RpcError:
        return False


# Faults: what an instance had not taken goes back, and nothing is ever in two places


@pytest.mark.nightly
def test_faults(
    world: WorldOfNodes, nodes: Nodes, started: dict[str, Node], ways: tuple[Wire, Wire]
) -> None:
    """All at the same time, for a lease lasts long; each of a user of its own."""
    two = [started["n1"], started["n2"]]
    killed, stopped, cut = (
        _Fault(world, two, user, started[name])
        for user, name in (("bob", "killed"), ("cem", "stopped"), ("dan", "cut"))
    )
    load = _Load(world, "eve", two)
    load.also_pull(started["killed"])
    started["killed"].process.kill()
    started["stopped"].process.send_signal(signal.SIGSTOP)
    for way in ways:
        way.cut()
    with ThreadPoolExecutor(3) as pool:
        ends: list[Future[None]] = [
            pool.submit(killed.has_ended),
            pool.submit(stopped.has_ended),
            pool.submit(cut.ends_though_it_is_reached, ways[1]),
        ]
    for end in ends:
        end.result()
    assert load.missing() <= 1  # taken by the node that was killed
    stopped_node = started["stopped"].process
    stopped_node.send_signal(signal.SIGCONT)
    stopped.goes_on()


@pytest.mark.nightly
def test_nothing_is_lost_or_doubled_by_a_database_that_is_killed(
    world: WorldOfNodes, two: list[Node], postgres: Postgres
) -> None:
    for _ in range(2):
        one, other = (world.puppet(node, "fay") for node in two)
        subscription = one.call("subscribe", "t")
        waiting = one.call("next_message", subscription)
        load = _Load(world, "eve", two)
        postgres.kill()
        postgres.start()
        assert load.missing() <= load.unknown_takes
        assert load.unknown_pushes <= 1
        assert other.call("broadcast", "t", "x") == 1
        assert take(world, one, waiting) == "x"
        one.end()
        other.end()


class _Load:
    """One that pushes and some that pull without a pause, while something fails."""

    def __init__(self, world: WorldOfNodes, user: str, on: list[Node]) -> None:
        self._world, self._user = world, user
        self._pushed: list[str] = []
        self._unknown: list[str] = []  # whether they were pushed
        self._taken: list[str] = []
        self._codes: set[str] = set()  # of errors
        self._stop = False
        self.unknown_takes = 0
        self._pool = ThreadPoolExecutor(2 + len(on))
        self._pushes = self._pool.submit(self._push, world.puppet(on[0], user))
        self._pulls = [self._pool.submit(self._pull, world.puppet(node, user)) for node in on]
        wait_for(lambda: len(self._taken) > 20)

    def also_pull(self, node: Node) -> None:
        """On a node that is to be lost."""
        self._pool.submit(self._pull, self._world.puppet(node, self._user))
        before = len(self._taken)
        wait_for(lambda: len(self._taken) > before + 20)

    @property
    def unknown_pushes(self) -> int:
        """Those that may be done or not."""
        return len(self._unknown)

    def missing(self) -> int:
        """How many were pushed and not taken; none was taken twice."""
        before = len(self._pushed)
        wait_for(lambda: self._pushes.done() or len(self._pushed) > before + AFTER)
        self._stop = True
        for task in (self._pushes, *self._pulls):
            task.result(60)
        self._pool.shutdown(wait=False)
        assert self._codes <= {"would-block", "failed-dependency"}
        assert max(Counter(self._taken).values()) == 1
        assert set(self._taken) <= {*self._pushed, *self._unknown}
        assert set(self._pushed[-AFTER:]) <= set(self._taken)
        return len(set(self._pushed) - set(self._taken))

    def _push(self, who: Puppet) -> None:
        for number in count():
            if self._stop:
                return
            try:
                who.call("push", "load", str(number))
                self._pushed.append(str(number))
            except ApiError as error:
                self._codes.add(error.code)
                if error.code == "would-block":
                    who.call("ready", [who.call("push_room", "load")], 5)
                else:
                    self._unknown.append(str(number))

    def _pull(self, who: Puppet) -> None:
        """Until its node is killed, or nothing comes any more."""
        with suppress(InstanceLost):
            future = who.call("pull", "load")
            while True:
                if not who.call("ready", [future], 1):
                    if self._pushes.done():
                        return who.end()
                    continue
                try:
                    self._taken.append(who.call("take_text", future))
                except ApiError as error:
                    self._codes.add(error.code)
                    self.unknown_takes += 1
                future = who.call("pull", "load")


class _Fault:
    """A node that is lost with an instance, and what the user's instances elsewhere see of it."""

    def __init__(self, world: WorldOfNodes, two: list[Node], user: str, node: Node) -> None:
        self._world, self._node = world, node
        self._own = world.puppet(node, user)
        self._one, self._other = (world.puppet(on, user) for on in two)
        self._subscription = self._own.call("subscribe", "t")
        self._one.call("subscribe", "t")
        self._open = [
            self._own.call("next_message", self._subscription),
            self._own.call("pull", "none"),
        ]
        self._own.call("push", "q", "held")
        self._own.call("push", "q", "next")
        self._held = self._own.call("pull", "q")
        assert self._own.call("ready", [self._held], 5) == [self._held]

    def has_ended(self) -> None:
        """What it had not taken goes back to its place, and its subscription goes."""
        other = self._other
        assert take(self._world, other, other.call("pull", "q")) == "next"
        pull = other.call("pull", "q")
        assert other.call("ready", [pull], 20) == [pull]
        assert other.call("take_text", pull) == "held"
        assert other.call("broadcast", "t", "x") == 1

    def goes_on(self) -> None:
        """Its process was stopped, or its database away, for longer than its lease."""
        own, other = self._own, self._other
        for future in self._open:
            assert own.call("ready", [future], 30) == [future]
            with failure("failed-dependency", f"node-lost: node {self._node.life}"):
                own.call("take_text", future)
            with failure("invalid-handle"):
                own.call("take_text", future)
        with failure("failed-dependency"):
            own.call("take_text", self._held)
        with failure("failed-dependency", "subscribe again"):
            own.call("next_message", self._subscription)
        own.call("unsubscribe", self._subscription)
        assert own.call("subscribe", "t") > self._subscription
        assert other.call("broadcast", "t", "again") == 2
        own.call("push", "q", "late")
        assert take(self._world, other, other.call("pull", "q")) == "late"

    def ends_though_it_is_reached(self, way_to_data: Wire) -> None:
        """Its client reaches it all the time; the directory has ended its life for the others."""
        self.has_ended()
        assert self._own.call("ready", self._open[:1], 30) == self._open[:1]
        way_to_data.mend()
        self.goes_on()
