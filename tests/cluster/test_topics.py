"""Topics and work queues of users whose instances are on several nodes: real processes, sockets and
PostgreSQL.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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

from pie_control.cluster.links import connected
from pie_py.client.errors import RpcError
from pie_py.config.limits import Limits

pytest.importorskip("psycopg")
pytestmark = pytest.mark.slow

FEW = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
CHILD = Path(__file__).parent / "guests/child.py"
USERS = ("ann", "bob", "cem", "dan")


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


@pytest.fixture(scope="module")
def nodes(postgres: Postgres) -> Iterator[Nodes]:
    config = {"messaging": MESSAGING, "limits": {"mailbox_bytes": MAILBOX_BYTES}}
    quota = {"share": 1.0, "launches": 1e6}
    with (
        postgres.database() as address,
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), address, USERS, quota=quota, **config) as nodes,
    ):
        yield nodes


@pytest.fixture(scope="module")
def two(nodes: Nodes) -> list[Node]:
    return nodes.start_all({"n1": {}, "n2": {}})


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


# Strangers


def test_who_cannot_read_the_database_is_no_node(nodes: Nodes, two: list[Node]) -> None:
    async def ask() -> list[str]:
        told = []
        async with connected(two[0].endpoint, nodes.key("bob")) as connection:
            call = {"member": f"x-1@{two[1].life}", "user": "ann", "call": "pull", "args": ["q"]}
            for method, asked in (
                ("bus-call", call),
                ("bus-events", {}),
                ("bus-drop", {"given_up": []}),
                ("bus-join", {"life": two[1].life, "secret": bytes(16)}),
                ("bus-call", call),
            ):
                with pytest.raises(RpcError) as refused:
                    await connection.request(method, **asked)
                told.append(refused.value.code)
        return told

    refused = ["not-joined"] * 3 + ["permission-denied", "not-joined"]
    assert trio.run(ask) == refused


# Faults: what ends takes what waits there with it, and nothing is ever in two places


def test_faults(nodes: Nodes, two: list[Node], world: WorldOfNodes, postgres: Postgres) -> None:
    """Each with a user of its own, and all at the same time, for a lease lasts long.

    Two nodes do not hear from the directory that their life is over: they would end.
    """
    name = nodes.database.partition("@")[2].partition("?")[0]
    with Wire(nodes.directory) as way, Wire(postgres.socket) as way_to_data:
        port = way_to_data.endpoint.rpartition(":")[2]
        data = f"postgresql://postgres@127.0.0.1:{port}{name}"
        cut_off = {"directory": way.endpoint}
        killed, stopped, cut = nodes.start_all(
            {"k": {}, "s": cut_off, "c": {**cut_off, "database": data}}
        )
        faults = [
            _Fault(world, two, user, node)
            for user, node in (("bob", killed), ("cem", stopped), ("dan", cut))
        ]
        members = [_Member(world, two, f"of {node.life}", node) for node in (killed, stopped)]
        killed.process.kill()
        stopped.process.send_signal(signal.SIGSTOP)
        way.cut()
        way_to_data.cut()
        with ThreadPoolExecutor(5) as pool:
            ends = [
                pool.submit(faults[0].killed),
                pool.submit(faults[1].stopped),
                pool.submit(faults[2].cut, way_to_data),
                *(pool.submit(member.gone) for member in members),
            ]
        for end in ends:
            end.result()
        stopped.process.send_signal(signal.SIGCONT)
        faults[1].goes_on()
        members[1].goes_on()


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
        self._own = self._world.attached(self._owner, self._user, self._own)
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
        self._one, self._other = (world.puppet(on, "ann") for on in two)
        self._one.call("subscribe", topic)  # so the owner is one of the two
        self._lost = world.puppet(node, "ann")
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
        again = self._world.attached(self._node, "ann", self._lost)
        with failure("failed-dependency"):
            again.call("take_text", self._pull)


# Children


def test_children_of_a_full_node_run_on_others(
    nodes: Nodes, two: list[Node], world: WorldOfNodes
) -> None:
    full, lost = nodes.start_all({"f": {"server": {"max_instances": 1}}, "x": {}})
    parent, other = world.puppet(full, "ann"), world.puppet(two[0], "ann")
    world.client(full, "ann").upload(CHILD.read_bytes(), name="child")

    def launched(*args: str) -> tuple[int, str]:
        future = parent.call("launch", "child", list(args))
        return future, take(world, other, other.call("pull", "born"))

    def lives(child: str) -> bool:
        node = next(one for one in (*two, lost) if child.endswith(f"@{one.life}"))
        return child in {one["id"] for one in world.client(node, "ann").instances()}

    future, child = launched("work")
    assert lives(child)
    parent.call("push", "work", "result")
    assert take(world, parent, future) == "result"
    wait_for(lambda: not lives(child))
    with failure("failed-dependency", "failed as told"):
        take(world, parent, parent.call("launch", "child", ["fail"]))
    future, child = launched("deeper", "deeper", "work")
    parent.call("push", "work", "from below")
    assert take(world, parent, future) == "from below"
    with failure("failed-dependency", "the last that is allowed"):
        deep = ["deeper"] * (Limits().child_depth + 1)
        take(world, parent, parent.call("launch", "child", deep))
    future, child = launched("nothing")
    parent.call("cancel", future)
    wait_for(lambda: not lives(child), 5)
    for _ in range(50):
        future, child = launched("nothing")
        if child.endswith(f"@{lost.life}"):
            break
        parent.call("cancel", future)
    lost.process.kill()
    assert parent.call("ready", [future], 20) == [future]
    with failure("failed-dependency", f"node-lost: node {lost.life}"):
        parent.call("take_text", future)
    _, child = launched("nothing")
    parent.end()
    wait_for(lambda: not lives(child), 5)
    parent = world.puppet(full, "ann")
    _, child = launched("nothing")
    full.process.kill()
    wait_for(lambda: not lives(child), 15)
    other.end()
