"""The number of nodes that a cluster should have, decided from their reports and a clock.

No I/O. The owner hands in the nodes and the time, and carries out what is decided.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from typing import NamedTuple, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from pie_cluster.wire.messages import NodeFacts

TOLERANCE = 0.1  # of the target: so much more or less changes nothing


class Autoscale(BaseModel):
    """Between how many nodes, and for which load of each: `[autoscale]` of `cluster.toml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min: PositiveInt = 1
    max: PositiveInt
    pool: float | None = Field(default=0.7, gt=0, le=1)  # share of a node's pool in use
    instances: PositiveInt | None = None  # on a node
    down_seconds: PositiveFloat = 300.0  # for which fewer nodes must do before one is drained
    drain_seconds: PositiveFloat = 3600.0  # that a drained node's instances have
    gpus: NonNegativeInt = 0  # of each node, as Ray counts them

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is more than max {self.max}")
        if self.pool is None and self.instances is None:
            raise ValueError("name a target: pool, instances or both")
        return self


class Change(NamedTuple):
    """What is to be done.

    Attributes:
        add: so many nodes more.
        cancel: nodes that were asked for, have no machine yet, and are not needed any more.
        drain: nodes that are to take no more.
    """

    add: int = 0
    cancel: Sequence[str] = ()
    drain: Sequence[str] = ()


class Autoscaler:
    """Adds at once what is missing, and drains what was not needed for a while.

    A node too many costs money, a node too few costs launches: so up and down differ. Between the
    loads at which it adds and at which it drains lies a band, so that a load that stays the same
    never has it do both in turn.
    """

    def __init__(self, settings: Autoscale, now: float) -> None:
        """Has seen nothing yet; the time is by a clock that only grows."""
        self._settings = settings
        self._began = now
        self._needs: deque[tuple[float, int]] = deque()  # of late, each above all later ones

    def decide(
        self,
        nodes: Sequence[NodeFacts],
        placed: Collection[str],
        asked: Collection[str],
        now: float,
    ) -> Change:
        """What to do now: with all nodes that the directory knows (one that was just started does
        not know all), the names of those that Ray keeps, with or without a machine, and of these,
        those that were asked for, have not begun, and may be given up.
        """
        settings = self._settings
        known = {node.node for node in nodes}
        unknown = set(placed) - known
        expected = sorted(unknown & set(asked))
        count = len(unknown) + sum(node.state != "draining" for node in nodes)
        load = self._load(nodes)
        needed = self._bounded(math.ceil(load * (1 + TOLERANCE)))
        self._remember(needed, now)
        if count < settings.min or load > count * (1 + TOLERANCE):
            return Change(add=max(0, self._bounded(math.ceil(load)) - count))
        spare = count - (settings.max if count > settings.max else self._most_needed(now, count))
        if spare <= 0:
            return Change()
        cancel = expected[max(0, len(expected) - spare) :]
        ready = [node for node in nodes if node.state == "ready"]
        ready.sort(key=lambda node: (node.instances, node.pool, node.node))
        most = min(spare - len(cancel), len(ready) - 1)  # one goes on taking launches
        return Change(cancel=cancel, drain=[node.node for node in ready[: max(0, most)]])

    def _load(self, nodes: Sequence[NodeFacts]) -> float:
        """How many nodes would be at their targets; what drains counts, as its work comes again."""
        settings = self._settings
        loads = [0.0]
        if settings.pool is not None:
            loads.append(sum(node.pool for node in nodes) / settings.pool)
        if settings.instances is not None:
            loads.append(sum(node.instances for node in nodes) / settings.instances)
        return max(loads)

    def _bounded(self, count: int) -> int:
        return min(max(count, self._settings.min), self._settings.max)

    def _remember(self, needed: int, now: float) -> None:
        while self._needs and self._needs[-1][1] <= needed:
            self._needs.pop()
        self._needs.append((now, needed))

    def _most_needed(self, now: float, count: int) -> int:
        """The most that was needed of late; `count` if it has not been watched for long enough."""
        start = now - self._settings.down_seconds
        if self._began > start:
            return count
        while self._needs[0][0] <= start:  # the last one is of now
            self._needs.popleft()
        return self._needs[0][1]
