"""Topics and work queues of users whose instances are on several nodes: real processes, sockets and
PostgreSQL.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import run_state_machine_as_test
from support import bus_rules
from support.bus_rules import MAILBOX_BYTES, MESSAGING, STEPS
from support.nodes import Node, Nodes
from support.postgres import Postgres
from support.puppets_of_nodes import WorldOfNodes

from pie_control.errors import ApiError

pytest.importorskip("psycopg")
pytestmark = pytest.mark.slow

FEW = settings(
    max_examples=10,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
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
