"""Topics and work queues of users whose instances are on several nodes: real processes, sockets and
PostgreSQL.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import run_state_machine_as_test
from support import bus_rules
from support.bus_rules import MAILBOX_BYTES, MESSAGING, STEPS, take
from support.clusters import Wire, wait_for
from support.instances import failure
from support.nodes import Node, Nodes
from support.postgres import Postgres
from support.puppets_of_nodes import Puppet, WorldOfNodes

from pie_cluster.node.links import connected
from pie_control.errors import ApiError
from pie_py.client.errors import RpcError
from pie_py.client.sync import Client

psycopg = pytest.importorskip("psycopg")
pytestmark = pytest.mark.slow

FEW = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
CHILD = Path(__file__).parent / "guests/child.py"
LIMITS = {"mailbox_bytes": MAILBOX_BYTES, "children": 4, "child_depth": 3}
USERS = ("ann", "bob", "cem", "dan", "eve", "fay")
NUMBERS = count()
AFTER = 100  # messages that are pushed to a new owner


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


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
    """To the directory, and to the database."""
    with Wire(nodes.directory) as directory, Wire(postgres.socket) as data:
        yield directory, data


@pytest.fixture(scope="module")
def started(nodes: Nodes, ways: tuple[Wire, Wire]) -> dict[str, Node]:
    """All nodes: two that stay, one that takes one instance, and three that are to be lost.

    Two of those will not hear from the directory that their life is over: they would end.
    """
    way, way_to_data = ways
    name = nodes.database.partition("@")[2].partition("?")[0]
    port = way_to_data.endpoint.rpartition(":")[2]
    data = f"postgresql://postgres@127.0.0.1:{port}{name}"
    lives: dict[str, dict[str, Any]] = {
        "n1": {},
        "n2": {},
        "full": {"server": {"max_instances": 1}},
        "killed": {},
        "stopped": {"directory": way.endpoint},
        "cut": {"directory": way.endpoint, "database": data},
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
def locked(nodes: Nodes, table: str) -> Iterator[Callable[[], list[int]]]:
    """Who writes to a table waits. Gives who would insert, as PostgreSQL's process identifiers.

    What ended before may still be removing a row of its own.
    """
    with psycopg.connect(nodes.database) as sql, psycopg.connect(nodes.database) as other:
        other.autocommit = True
        sql.execute(f"LOCK TABLE {table} IN EXCLUSIVE MODE")

        def waiting() -> list[int]:
            asked = other.execute(
                "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted"
                " AND relation = %s::regclass AND query LIKE '%%INSERT%%'",
                (table,),
            )
            return [pid for (pid,) in asked]

        yield waiting


def test_a_launch_that_may_have_been_recorded_is_not_sent_again(
    nodes: Nodes, two: list[Node], world: WorldOfNodes
) -> None:
    ann = world.client(two[0], "ann")
    wait_for(lambda: _is_launched(ann))  # its lease is there
    with ThreadPoolExecutor(1) as pool, locked(nodes, "launches") as waiting:
        launch = pool.submit(ann.launch, "puppet", restart=1)
        wait_for(lambda: bool(waiting()))
        with psycopg.connect(nodes.database) as sql:
            sql.execute("SELECT pg_terminate_backend(%s)", (waiting()[0],))
        with pytest.raises(RpcError, match=r"node-lost: .* may have been recorded"):
            launch.result()


def test_topics_are_known_here_whose_claimer_was_killed(
    nodes: Nodes, two: list[Node], world: WorldOfNodes
) -> None:
    one, other = (world.puppet(node, "fay") for node in two)
    with locked(nodes, "bus_owners") as waiting:
        one.begin("push", "q", "x")
        wait_for(lambda: bool(waiting()))
        assert world.client(two[0], "fay").kill(one.instance.id)
    assert other.call("push", "q", "y") is None
    other.end()


def _is_launched(client: Client) -> bool:
    try:
        return bool(client.kill(client.launch("puppet", restart=1).id))
    except RpcError:
        return False


# Strangers


def test_a_user_is_no_node(nodes: Nodes, two: list[Node]) -> None:
    async def ask() -> list[str]:
        told = []
        async with connected(two[0].endpoint, nodes.key("bob")) as connection:
            call = {"member": f"x-1@{two[1].life}", "user": "ann", "call": "pull", "args": ["q"]}
            for method, asked in (
                ("bus-call", call),
                ("bus-events", {}),
                ("bus-drop", {"given_up": []}),
                ("bus-join", {"life": two[1].life}),
                ("bus-call", call),
            ):
                with pytest.raises(RpcError) as refused:
                    await connection.request(method, **asked)
                told.append(refused.value.code)
        return told

    refused = ["not-joined"] * 3 + ["permission-denied", "not-joined"]
    assert trio.run(ask) == refused


# Children


class Parent:
    """An instance that fills its node, so that its children run on others."""

    def __init__(self, world: WorldOfNodes, started: dict[str, Node]) -> None:
        self._world, self._started = world, started
        self.puppet = world.puppet(started["full"], "ann")
        self._other = world.puppet(started["n1"], "ann")
        self._upload()

    def _upload(self, more: str = "") -> None:
        client = self._world.client(self._started["full"], "ann")
        client.upload(CHILD.read_bytes() + more.encode(), name="child")

    def launch(self, *args: str) -> int:
        future: int = self.puppet.call("launch", "child", list(args))
        return future

    def launched(self, *args: str) -> tuple[int, str]:
        """A child that tells where it runs."""
        future = self.launch(*args)
        return future, take(self._world, self._other, self._other.call("pull", "born"))

    def launched_on(self, node: Node) -> tuple[int, str]:
        for _ in range(100):  # programs that no node has: launches follow what is cached
            self._upload(f"# {next(NUMBERS)}")
            future, child = self.launched("nothing")
            if child.endswith(f"@{node.life}"):
                return future, child
            self.puppet.call("cancel", future)
        raise AssertionError(f"no child went to {node.life}")

    def lives(self, child: str) -> bool:
        node = next(n for n in self._started.values() if child.endswith(f"@{n.life}"))
        return child in {one["id"] for one in self._world.client(node, "ann").instances()}


def test_children_of_a_full_node_run_on_others(
    world: WorldOfNodes, started: dict[str, Node]
) -> None:
    parent = Parent(world, started)
    future, child = parent.launched("work")
    assert parent.lives(child)
    parent.puppet.call("push", "work", "result")
    assert take(world, parent.puppet, future) == "result"
    wait_for(lambda: not parent.lives(child))
    with failure("failed-dependency", "failed as told"):
        take(world, parent.puppet, parent.launch("fail"))
    future, child = parent.launched("deeper", "deeper", "work")
    parent.puppet.call("push", "work", "from below")
    assert take(world, parent.puppet, future) == "from below"
    with failure("failed-dependency", "the last that is allowed"):
        take(world, parent.puppet, parent.launch(*["deeper"] * (LIMITS["child_depth"] + 1)))
    future, child = parent.launched("nothing")
    parent.puppet.call("cancel", future)
    wait_for(lambda: not parent.lives(child), 5)
    futures = [parent.launched("nothing")[0] for _ in range(LIMITS["children"])]
    with failure("limit-exceeded", "children are alive"):
        parent.launch("nothing")
    for future in futures:
        parent.puppet.call("cancel", future)
    _, child = parent.launched("nothing")
    parent.puppet.end()
    wait_for(lambda: not parent.lives(child), 5)


# Faults: what ends takes what waits there with it, and nothing is ever in two places


def test_faults(
    world: WorldOfNodes, nodes: Nodes, started: dict[str, Node], ways: tuple[Wire, Wire]
) -> None:
    """All at the same time, for a lease lasts long. Those of owners have users of their own."""
    two = [started["n1"], started["n2"]]
    killed, stopped, cut = started["killed"], started["stopped"], started["cut"]
    owners = [
        _Fault(world, two, user, node)
        for user, node in (("bob", killed), ("cem", stopped), ("dan", cut))
    ]
    members = [_Member(world, two, f"of {node.life}", node) for node in (killed, stopped)]
    parent = Parent(world, started)
    future, _ = parent.launched_on(killed)
    load = _Load(world, two, killed)
    killed.process.kill()
    stopped.process.send_signal(signal.SIGSTOP)
    for way in ways:
        way.cut()
    with ThreadPoolExecutor(6) as pool:
        ends = [
            pool.submit(owners[0].killed),
            pool.submit(owners[1].stopped),
            pool.submit(owners[2].cut, ways[1]),
            *(pool.submit(member.gone) for member in members),
            pool.submit(_lose, parent, future, started, nodes),
        ]
    for end in ends:
        end.result()
    load.is_whole()
    stopped.process.send_signal(signal.SIGCONT)
    owners[1].goes_on()
    members[1].goes_on()


class _Load:
    """One that pushes and two that pull without a pause, while the owner is killed."""

    def __init__(self, world: WorldOfNodes, two: list[Node], owner: Node) -> None:
        self._pushed: list[str] = []
        self._unknown: list[str] = []  # whether they were pushed
        self._taken: list[str] = []
        self._fails = 0
        self._codes: set[str] = set()  # of errors
        own = world.puppet(owner, "eve")
        own.call("push_room", "load")
        assert world.owner("eve") == owner.life
        pushing, *pulling = (world.puppet(node, "eve") for node in (two[0], *two))
        self._pool = ThreadPoolExecutor(3)
        self._tasks = [self._pool.submit(self._push, pushing)]
        self._tasks += [self._pool.submit(self._pull, who) for who in pulling]
        wait_for(lambda: len(self._taken) > 20)

    def is_whole(self) -> None:
        """None was delivered twice, and of those pushed to the next owner all."""
        for task in self._tasks:
            task.result(60)
        self._pool.shutdown()
        assert self._fails > 0
        assert self._codes <= {"would-block", "failed-dependency"}
        assert max(Counter(self._taken).values()) == 1
        assert set(self._taken) <= {*self._pushed, *self._unknown}
        later = self._pushed[-AFTER:]
        assert [text for text in self._pushed if text in later and text in self._taken] == later

    def _push(self, who: Puppet) -> None:
        number = count(1)
        well = 0  # pushed since the last failure
        while self._fails == 0 or well < AFTER:
            text = str(next(number))
            try:
                who.call("push", "load", text)
                self._pushed.append(text)
                well += 1
            except ApiError as error:
                self._codes.add(error.code)
                if error.code != "would-block":
                    self._unknown.append(text)
                    self._fails += 1
                    well = 0
        for _ in range(2):
            who.call("ready", [who.call("push_room", "load")], 30)
            who.call("push", "load", "end")

    def _pull(self, who: Puppet) -> None:
        while True:
            try:
                future = who.call("pull", "load")
                while not who.call("ready", [future], 5):
                    pass
                text = who.call("take_text", future)
            except ApiError as error:
                self._codes.add(error.code)
                continue
            if text == "end":
                return
            self._taken.append(text)


def _lose(parent: Parent, future: int, started: dict[str, Node], nodes: Nodes) -> None:
    """A child's node is lost, then its parent's."""
    assert parent.puppet.call("ready", [future], 20) == [future]
    with failure("failed-dependency", f"node-lost: node {started['killed'].life}"):
        parent.puppet.call("take_text", future)
    # Until the directory knows that they are silent, a child may go to one of the others.
    wait_for(lambda: not {"killed", "stopped", "cut"} & nodes.ready(), 15)
    _, child = parent.launched_on(started["n2"])
    started["full"].process.kill()
    wait_for(lambda: not parent.lives(child), 15)


class _Fault:
    """A node that owns a user's topics, and what his instances elsewhere see of its fault."""

    def __init__(self, world: WorldOfNodes, two: list[Node], user: str, owner: Node) -> None:
        self._world, self._user, self._owner = world, user, owner
        self._own = world.puppet(owner, user)
        self._one, self._other = (world.puppet(node, user) for node in two)
        self._own.call("push", "q", "before")
        assert world.owner(user) == owner.life
        self._other.call("push_room", "q")  # it knows the owner, too
        self._subscription = self._one.call("subscribe", "t")
        own = self._own.call("subscribe", "t")
        self._of_owner = self._own.call("next_message", own)
        self._futures = [
            self._one.call("next_message", self._subscription),
            self._one.call("pull", "none"),
        ]
        self._held = self._one.call("pull", "q")
        assert self._one.call("ready", [self._held], 5) == [self._held]

    def killed(self) -> None:
        self._are_lost(self._one, self._futures)
        self._another_owner_serves()

    def stopped(self) -> None:
        self._other.begin("push", "q", "unknown")
        self._are_lost(self._one, self._futures)
        with failure("failed-dependency", "may be done or not"):
            self._other.finish()
        self._another_owner_serves()

    def goes_on(self) -> None:
        """The owner's process was stopped for longer than its lease."""
        self._own.call("push", "q", "late")
        self._are_lost(self._own, [self._of_owner])
        assert take(self._world, self._other, self._other.call("pull", "q")) == "late"

    def cut(self, way_to_data: Wire) -> None:
        """The owner's client reaches it all the time."""
        with ThreadPoolExecutor(1) as pool:
            serves = pool.submit(self._serves)
            self._are_lost(self._own, [self._of_owner])
            lost = time.monotonic()
            self._own.begin("push", "q", "cut off")
            assert lost < serves.result()
        way_to_data.mend()
        self._own.finish()
        assert take(self._world, self._other, self._other.call("pull", "q")) == "cut off"

    def _serves(self) -> float:
        """When another owner serves."""
        self._are_lost(self._one, self._futures)
        self._another_owner_serves()
        return time.monotonic()

    def _are_lost(self, who: Puppet, futures: list[int]) -> None:
        for future in futures:
            assert who.call("ready", [future], 30) == [future]
            with failure("failed-dependency", f"node-lost: node {self._owner.life}"):
                who.call("take_text", future)
            with failure("invalid-handle"):
                who.call("take_text", future)

    def _another_owner_serves(self) -> None:
        """What was held at the former one is gone, and the subscription has ended."""
        one, other = self._one, self._other
        with failure("failed-dependency", "subscribe again"):
            one.call("next_message", self._subscription)
        with failure("failed-dependency"):
            one.call("take_text", self._held)
        one.call("unsubscribe", self._subscription)
        one.call("push", "q", "after")
        assert self._world.owner(self._user) != self._owner.life
        assert take(self._world, other, other.call("pull", "q")) == "after"
        assert one.call("subscribe", "t") > self._subscription
        assert other.call("broadcast", "t", "again") == 1


class _Member:
    """A node that is lost with an instance whose user has his topics elsewhere."""

    def __init__(self, world: WorldOfNodes, two: list[Node], topic: str, node: Node) -> None:
        self._world, self._topic, self._node = world, topic, node
        self._one, self._other = (world.puppet(on, "fay") for on in two)
        self._one.call("subscribe", topic)  # so the owner is one of the two
        assert world.owner("fay") in [each.life for each in two]
        self._lost = world.puppet(node, "fay")
        self._lost.call("subscribe", topic)
        assert self._other.call("broadcast", topic, "x") == 2
        self._one.call("push", topic, "message")
        self._pull = self._lost.call("pull", topic)
        assert self._lost.call("ready", [self._pull], 5) == [self._pull]

    def gone(self) -> None:
        """What it had not taken goes back, and its subscription goes."""
        pull = self._other.call("pull", self._topic)
        assert self._other.call("ready", [pull], 20) == [pull]
        assert self._other.call("take_text", pull) == "message"
        assert self._other.call("broadcast", self._topic, "y") == 1

    def goes_on(self) -> None:
        """The message is not delivered again."""
        with failure("failed-dependency"):
            self._lost.call("take_text", self._pull)
