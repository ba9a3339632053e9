"""A cluster in simulated time: the table and the policies that a directory has, and a trace's load.

The trace is taken as what one population of users does. The cluster serves as many copies of it as
make up the load, each with users and prompts of its own, and with arrivals of its own: a burst is
one population's, not the whole cluster's. Later turns of an instance stay on its node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeAlias

from benchmarks.simulated_cluster.simulated_node import Machine, Ready, SimulatedNode, Waiting
from benchmarks.simulated_cluster.traces import BLOCK, Launch
from pie_cluster.directory.node import Node
from pie_cluster.directory.table import Keys, Table
from pie_cluster.wire.messages import program_key
from pie_py.wire.methods import FIRST_TOKENS, MOST_PREFIXES

Policy: TypeAlias = Callable[[Keys, float, Table, Random], Node | None]
ARRIVALS = {"poisson": 1.0, "bursty": 4.0}  # coefficients of variation of the gaps


@dataclass(frozen=True)
class Scenario:
    """How large the cluster is, and how busy."""

    nodes: int = 2000
    load: float = 0.8  # prompt tokens that come, as a share of what all nodes could compute
    warm_seconds: float = 60.0  # that are not measured
    seconds: float = 60.0  # that are
    report_seconds: float = 5.0  # between a node's reports
    seed: int = 1
    machine: Machine = field(default_factory=Machine)


@dataclass
class Outcome:
    """The figures of a run; times are seconds."""

    first: list[float] = field(default_factory=list)  # to the first token of launches
    later: list[float] = field(default_factory=list)  # to that of later turns
    prompt: int = 0  # tokens of launches
    hits: int = 0  # of these, found in a cache
    held: list[float] = field(default_factory=list)  # token seconds of each node

    @property
    def hit_share(self) -> float:
        """Of the prompt tokens of launches: what a placement decides."""
        return self.hits / max(1, self.prompt)

    @property
    def fullest(self) -> float:
        """The memory of the fullest node over the mean of all, both over time."""
        total = sum(self.held)
        return max(self.held) * len(self.held) / total if total else 1.0


@dataclass(slots=True)
class _Running:
    """An instance that has had its first token."""

    node: SimulatedNode
    launch: Launch
    tokens: int  # that it holds
    turn: int = 0


_Event: TypeAlias = tuple[float, int, Any, Any]


class Simulation:
    """One run of one policy."""

    def __init__(
        self,
        trace: Sequence[Launch],
        scenario: Scenario,
        policy: Policy,
        variation: float,
        *,
        prompts: bool = False,
    ) -> None:
        self._prompts = prompts  # launches tell what they begin with
        self.outcome = Outcome()
        self._trace = trace
        self._scenario = scenario
        self._policy = policy
        self._random = Random(scenario.seed)  # of the policy
        self._arrivals = Random(scenario.seed + 1)  # the same whatever the policy
        self._table = Table()
        self._events: list[_Event] = []
        self._order = count()
        self._blocks = 1 + max((max(one.blocks, default=0) for one in trace), default=0)
        self._end = scenario.warm_seconds + scenario.seconds
        self._nodes = {
            f"n{number}": SimulatedNode(f"n{number}", scenario.machine)
            for number in range(scenario.nodes)
        }
        mean = sum(launch.prompt for launch in trace) / len(trace)
        rate = scenario.load * scenario.nodes * scenario.machine.prefill_rate / max(1.0, mean)
        copies = max(1, round(rate * self._end / len(trace)))
        self._shape = 1 / variation**2
        self._gap = copies / rate / self._shape
        for number in range(copies):
            place = self._arrivals.randrange(len(trace))
            first = self._next_gap() * self._arrivals.random()
            self._at(first, self._arrive, (number, place))
        for node in self._nodes.values():
            self._table.add(node.join())
            self._at(self._random.random() * scenario.report_seconds, self._report, node)

    def run(self) -> Outcome:
        """Runs to the end."""
        events, end, warm = self._events, self._end, self._scenario.warm_seconds
        before: list[float] | None = None
        while events and events[0][0] < end:
            now, _, act, subject = heappop(events)
            if before is None and now >= warm:
                before = [node.held(warm) for node in self._nodes.values()]
            act(subject, now)
        held = [node.held(end) for node in self._nodes.values()]
        self.outcome.held = [b - a for a, b in zip(before or [0.0] * len(held), held, strict=True)]
        return self.outcome

    def _at(self, time: float, act: Any, subject: Any) -> None:
        heappush(self._events, (time, next(self._order), act, subject))

    def _next_gap(self) -> float:
        if self._shape == 1:
            return self._arrivals.expovariate(1 / self._gap)
        return self._arrivals.gammavariate(self._shape, self._gap)

    def _report(self, node: SimulatedNode, now: float) -> None:
        report = node.report(now)
        known = self._table.find(node.name)
        assert known is not None
        self._table.learn(known, report.cached, now)
        self._table.take(known, report.load, now)
        self._at(now + self._scenario.report_seconds, self._report, node)

    def _arrive(self, came: tuple[int, int], now: float) -> None:
        """The next launch of a population: a copy of the trace, with users of its own."""
        population, place = came
        launch = self._trace[place]
        following = population, (place + 1) % len(self._trace)
        self._at(now + self._next_gap(), self._arrive, following)
        user = f"{population}/{launch.user}"
        key = program_key(user, launch.program)
        keys = self._keys(user, launch) or [(key, self._table.expected(key))]
        found = self._policy(keys, now, self._table, self._random)
        found = found or self._table.find(self._random.choice(list(self._nodes)))
        assert found is not None  # no simulated node fails
        self._table.place(found, keys, now)
        node = self._nodes[found.life.node]
        first = population * self._blocks
        blocks = tuple([first + block for block in launch.blocks])
        if node.waiting or not node.has_room(launch.prompt + launch.output):
            node.waiting.append((now, key, launch, blocks))
        else:
            self._begin(node, (now, key, launch, blocks), now)

    def _keys(self, user: str, launch: Launch) -> list[tuple[int, int]]:
        """As the directory makes them of a prompt's beginnings, where launches tell them; a block
        of a trace names all that is before it.
        """
        if not self._prompts:
            return []
        lengths = [FIRST_TOKENS << doublings for doublings in reversed(range(MOST_PREFIXES))]
        return [
            (hash((user, launch.blocks[length // BLOCK - 1])), int(length * 2**0.5))
            for length in lengths
            if BLOCK <= length <= len(launch.blocks) * BLOCK
        ]

    def _begin(self, node: SimulatedNode, waited: Waiting, now: float) -> None:
        came, key, launch, blocks = waited
        ready = node.begin(key, launch, blocks, now)
        if came >= self._scenario.warm_seconds:
            self.outcome.first.append(ready.at - came)
            self.outcome.prompt += ready.tokens
            self.outcome.hits += ready.hits
        running = _Running(node, launch, launch.prompt + launch.output)
        self._go_on(running, ready, launch.output)

    def _go_on(self, running: _Running, ready: Ready, output: int) -> None:
        """The instance generates; then it waits for its next turn, or ends."""
        done = ready.at + max(0, output - 1) * running.node.step()
        if running.turn < len(running.launch.turns):
            self._at(done + running.launch.turns[running.turn][0], self._turn, running)
        else:
            self._at(done, self._finish, running)

    def _turn(self, running: _Running, now: float) -> None:
        _, given, output = running.launch.turns[running.turn]
        running.turn += 1
        ready = running.node.turn(running.tokens, given, output, now)
        running.tokens += given + output
        if now >= self._scenario.warm_seconds:
            self.outcome.later.append(ready.at - now)
        self._go_on(running, ready, output)

    def _finish(self, running: _Running, now: float) -> None:
        node = running.node
        node.end(running.tokens, now)
        while node.waiting:
            launch = node.waiting[0][2]
            if not node.has_room(launch.prompt + launch.output):
                return
            self._begin(node, node.waiting.popleft(), now)
