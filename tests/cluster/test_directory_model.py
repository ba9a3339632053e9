"""The directory against a model that looks at every node for every question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import hypothesis.strategies as st
from cluster.messages import join, report
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pie_cluster.directory.directory import LOST, Directory, PlacementRequest
from pie_cluster.directory.node import Life
from pie_cluster.wire.messages import Fenced, JoinAgain, Renewed, program_key
from pie_control.errors import Refusal

NAMES = ("n1", "n2", "n3", "n4")
MOST = 3  # instances of a node
PROGRAMS = ("a", "b")
names = st.sampled_from(NAMES)


@dataclass
class Known:
    """One life, as the model has it."""

    incarnation: int
    heard: float
    instances: int = 0
    drain_until: float | None = None
    again: bool = False

    def state(self, now: float) -> str:
        if now - self.heard >= 3:
            return "silent"
        return "ready" if self.drain_until is None else "draining"

    def takes(self, now: float) -> bool:
        return self.state(now) == "ready" and self.instances < MOST


def answer(act: Callable[[], Any]) -> Any:
    """What it returns, or the code of its refusal."""
    try:
        return act()
    except Refusal as refusal:
        return refusal.code


class DirectoryMachine(RuleBasedStateMachine):
    """Steps of time are below the pause at which a directory would forgive all nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.nodes: dict[str, Known] = {}
        self.last = dict.fromkeys(NAMES, 0)
        self.lost: set[str] = set()  # nodes
        self.expected: set[Life] = set()
        self.directory = Directory(Random(0), 0.0)

    @rule(steps=st.integers(1, 9), each=st.sampled_from([0.25, 0.5, 1.0]))
    def time_passes(self, steps: int, each: float) -> None:
        for _ in range(steps):
            self.now += each
            for name, node in list(self.nodes.items()):
                late = node.drain_until is not None and node.drain_until <= self.now
                if late or self.now - node.heard >= 10:
                    self._end(name)
            orders = self.directory.due(self.now)
            assert set(orders) == self.expected
            assert len(orders) == len(self.expected)
            self.expected = set()

    def _end(self, name: str) -> None:
        node = self.nodes.pop(name)
        self.expected.add(Life(name, node.incarnation))
        if node.drain_until is None or node.again:
            self.lost.add(name)

    @rule(name=names, ahead=st.integers(-1, 2), instances=st.integers(0, MOST))
    def joins(self, name: str, ahead: int, instances: int) -> None:
        incarnation = max(1, self.last[name] + ahead)
        message = join(name, incarnation, most_instances=MOST)
        answer = self.directory.report(message, self.now)
        known = self.nodes.get(name)
        last = self.last[name]
        if incarnation < last or (known is None and incarnation == last):
            assert isinstance(answer, Fenced)
            return
        assert isinstance(answer, Renewed)
        self.lost.discard(name)
        self.nodes[name] = node = Known(incarnation, self.now)
        if known and known.incarnation == incarnation:
            node.drain_until, node.again = known.drain_until, known.again
        self.last[name] = incarnation

    @rule(
        name=names,
        older=st.integers(-1, 1),
        instances=st.integers(0, MOST),
        program=st.sampled_from(PROGRAMS),
        empty=st.booleans(),
    )
    def reports(self, name: str, older: int, instances: int, program: str, empty: bool) -> None:
        node = self.nodes.get(name)
        incarnation = max(1, self.last[name] - older)
        drains = node is not None and node.drain_until is not None and empty
        instances = 0 if drains else instances
        message = report(
            name,
            incarnation,
            instances,
            cached=[(program_key("ann", program), 512 * instances)],
            drain_ms=1000 if drains else None,
        )
        answer = self.directory.report(message, self.now)
        if node is None:
            assert isinstance(answer, Fenced if incarnation <= self.last[name] else JoinAgain)
        elif incarnation != node.incarnation:
            assert isinstance(answer, Fenced if incarnation < node.incarnation else JoinAgain)
        else:
            left = None if node.drain_until is None else int((node.drain_until - self.now) * 1000)
            assert answer == Renewed(left, again=node.again)
            node.heard, node.instances = self.now, instances
            if drains:
                self._end(name)

    @rule(name=names, seconds=st.sampled_from([0.5, 3.0, 60.0]), again=st.booleans())
    def drains(self, name: str, seconds: float, again: bool) -> None:
        node = self.nodes.get(name)
        ready = {n for n, k in self.nodes.items() if k.state(self.now) == "ready"}
        told = answer(lambda: self.directory.drain(name, seconds, self.now, again))
        if node is None:
            assert told == "not-found"
        elif ready == {name}:
            assert told == "invalid"
        else:
            assert told is None
            node.drain_until, node.again = self.now + seconds, again

    @rule(program=st.sampled_from(PROGRAMS), near=st.none() | names)
    def places(self, program: str, near: str | None) -> None:
        request = PlacementRequest("ann", program)
        if near is not None:
            life = f"{near}.{self.last[near] or 1}"
            request = PlacementRequest("ann", program, near=f"chat-1a2b3c4d@{life}")
        room = {name for name, node in self.nodes.items() if node.takes(self.now)}
        there = answer(lambda: self.directory.place(request, self.now))
        if near is not None and near not in self.nodes:
            assert there == ("starting" if self.now < 3 and not self.last[near] else "near-gone")
            return
        if not room:
            assert there == ("starting" if self.now < 3 else "busy")
            return
        assert there.life.node in room
        if near in room:
            assert there.life.node == near
        node = self.nodes[there.life.node]
        assert there.life.incarnation == node.incarnation
        assert there[1:] == (f"tcp://{there.life.node}:7743", f"key of {there.life.node}")
        node.instances += 1

    @rule(name=names, incarnation=st.integers(1, 4))
    def is_looked_for(self, name: str, incarnation: int) -> None:
        node = self.nodes.get(name)
        there = answer(
            lambda: self.directory.where(f"chat-1a2b3c4d@{name}.{incarnation}", self.now)
        )
        if node is not None and node.incarnation == incarnation:
            assert there.life == (name, incarnation)
        else:
            unknown = incarnation > self.last[name] and self.now < 3
            assert there == ("starting" if unknown else "node-lost")

    @invariant()
    def status_is_the_models(self) -> None:
        shown = self.directory.status(self.now)
        assert {one.node for one in shown if one.state == LOST} == self.lost
        known = [one for one in shown if one.state != LOST]
        for one in known:
            node = self.nodes[one.node]
            assert one.incarnation == node.incarnation
            assert one.instances == node.instances
            assert one.state == node.state(self.now)
            assert one.silent_seconds == self.now - node.heard
        assert len(known) == len(self.nodes)


DirectoryMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
test_directory = DirectoryMachine.TestCase
