"""How many nodes a cluster should have: what is decided, from loads and a clock."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pie_cluster.machines.autoscale import TOLERANCE, Autoscale, Autoscaler
from pie_cluster.wire.messages import NodeFacts

SETTINGS = Autoscale(min=2, max=6, pool=0.5, instances=10, down_seconds=60)
STEP = 5.0  # seconds between two looks


def node(name: str, instances: float = 0, pool: float = 0.0, state: str = "ready") -> NodeFacts:
    return NodeFacts(name, 1, state, "1", "tcp://[::1]:1", int(instances), pool, 0.0, 0.0, "")


class World:
    """A cluster whose load lies on its nodes, and where what is asked for is done."""

    def __init__(self, settings: Autoscale = SETTINGS, count: int = 2) -> None:
        self.settings = settings
        self.now = 0.0
        self.scaler = Autoscaler(settings, self.now)
        self.named = count
        self.nodes = {f"n{number}" for number in range(1, count + 1)}
        self.asked: set[str] = set()  # no machine has room for them yet
        self.loads: list[tuple[float, int]] = []

    def look(self, load: int, *, arrives: bool = True) -> int:
        """One look under so many instances; how many nodes there are or will be."""
        self.now += STEP
        self.loads.append((self.now, load))
        if arrives:
            self.nodes |= self.asked
            self.asked.clear()
        names = sorted(self.nodes)
        parts = [load // len(names) + (i < load % len(names)) for i in range(len(names))]
        facts = [node(name, part) for name, part in zip(names, parts, strict=True)]
        before = self.count
        change = self.scaler.decide(facts, self.nodes | self.asked, self.asked, self.now)
        for _ in range(change.add):
            self.named += 1
            self.asked.add(f"n{self.named}")
        assert set(change.cancel) <= self.asked
        assert set(change.drain) <= self.nodes
        self.asked -= set(change.cancel)
        self.nodes -= set(change.drain)
        assert self.nodes, "one goes on taking launches"
        if self.count < before:
            self._check_fewer_do()
        return self.count

    @property
    def count(self) -> int:
        return len(self.nodes) + len(self.asked)

    def _check_fewer_do(self) -> None:
        """They would have done for as long as is asked for."""
        late = [load for at, load in self.loads if at > self.now - self.settings.down_seconds]
        assert self.now >= self.settings.down_seconds
        assert max(late) / (self.settings.instances or 1) <= self.count


@given(st.lists(st.tuples(st.integers(0, 55), st.integers(1, 20), st.booleans()), max_size=12))
def test_it_stays_between_its_bounds_and_comes_to_rest(
    phases: list[tuple[int, int, bool]],
) -> None:
    world = World()
    for load, looks, arrives in phases:
        for _ in range(looks):
            assert SETTINGS.min <= world.look(load, arrives=arrives) <= SETTINGS.max
    load = phases[-1][0] if phases else 0
    for _ in range(20):  # for more than down_seconds
        world.look(load)
    rest = world.count
    assert {world.look(load) for _ in range(20)} == {rest}
    wanted = max(load / 10, SETTINGS.min)
    assert wanted / (1 + TOLERANCE) <= rest <= math.ceil(wanted * (1 + TOLERANCE))


@given(st.integers(20, 290), st.lists(st.floats(-0.02, 0.02), min_size=60, max_size=60))
def test_a_load_that_trembles_does_not_have_it_go_up_and_down(
    load: int, noise: list[float]
) -> None:
    world = World(Autoscale(min=1, max=40, pool=None, instances=10, down_seconds=20))
    counts = [world.look(round(load * (1 + part))) for part in noise]
    moves = [b - a for a, b in pairwise(counts) if a != b]
    assert sum(move > 0 for move in moves) <= 1
    assert sum(move < 0 for move in moves) <= 1


def test_no_more_than_the_most_whatever_comes() -> None:
    world = World()
    assert {world.look(1000) for _ in range(50)} == {6}


def test_more_come_at_once_and_fewer_after_a_while() -> None:
    world = World()
    assert world.look(45) == 5
    assert {world.look(10) for _ in range(11)} == {5}
    assert world.look(10) == 2


def test_the_share_of_the_pool_counts_as_well() -> None:
    scaler = Autoscaler(SETTINGS, 0)
    assert scaler.decide([node("n1", 1, 0.9), node("n2", 1, 0.8)], (), (), 1).add == 2


def test_what_has_no_machine_yet_is_given_up_first() -> None:
    world = World()
    world.look(55, arrives=False)
    assert len(world.asked) == 4
    for _ in range(13):
        world.look(0, arrives=False)
    assert (world.asked, world.nodes) == (set(), {"n1", "n2"})


def test_the_lightest_are_drained() -> None:
    scaler = Autoscaler(SETTINGS, 0)
    nodes = [node("n1", 3), node("n2", 1), node("n3", 1, 0.1), node("n4", 9)]
    scaler.decide(nodes, (), (), 0)
    assert list(scaler.decide(nodes, (), (), 60).drain) == ["n2", "n3"]


def test_a_directory_that_was_just_started_changes_nothing() -> None:
    scaler = Autoscaler(SETTINGS, 0)
    names = [f"n{number}" for number in range(4)]
    for now in range(0, 59, 5):
        scaler.decide([node(name, 10) for name in names], names, (), now)
    change = scaler.decide([], names, (), 60)
    assert (change.add, list(change.cancel), list(change.drain)) == (0, [], [])


def test_what_drains_is_not_counted_and_the_last_one_stays() -> None:
    scaler = Autoscaler(Autoscale(min=1, max=4, down_seconds=1), 0)
    nodes = [node("n1"), node("n2", state="draining"), node("n3", state="silent")]
    scaler.decide(nodes, (), (), 0)
    assert list(scaler.decide(nodes, (), (), 60).drain) == []
    assert scaler.decide([node("n2", state="draining")], (), (), 61).add == 1
