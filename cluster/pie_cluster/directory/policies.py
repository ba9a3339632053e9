"""The policy that chooses a launch's node.

A policy is a function without state and without I/O: a launch, the table and a source of random
numbers in, a node out. It sees the table through methods that look at a few nodes each, so that a
decision costs the same however many there are. None means that the nodes it has looked at have no
room.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

from pie_cluster.directory.node import FULL, Node
from pie_cluster.directory.table import Table


class Launch(NamedTuple):
    """What is known of a launch before it runs.

    Attributes:
        keys: of what it may find cached, with about the tokens of each, most first: of the
            beginnings of its prompt, or of its user and program where the program makes the prompt.
        now: by the directory's clock.
        beside: where the instance is that it asks to be near to.
    """

    keys: Sequence[tuple[int, int]]
    now: float
    beside: Node | None = None


CROWDED_SECONDS = 1.0  # that a pool twice as full as others costs, of those that are full
LITTLE = 0.05  # of a pool, which is no crowd
MOST_LOOKED_AT = 6  # nodes of one launch

Policy: TypeAlias = Callable[[Launch, Table, Random], Node | None]


def cached(launch: Launch, table: Table, random: Random) -> Node | None:
    """The cheapest of two nodes that have each of its keys cached, a random one and a light one.

    What a node costs is the seconds before it would begin, less the seconds that its cache saves.
    So a launch follows its prompt's pages until waiting for them takes longer than computing them
    again: load spreads by itself, and a prompt in demand gets more nodes.
    """
    keys, now = launch.keys, launch.now
    if launch.beside is not None and table.has_room(launch.beside):
        return launch.beside
    nodes = [table.any(random), table.lightest(random)]
    for key, _ in keys:
        if (holder := table.holder(key, random)) is not None:
            nodes += holder, table.holder(key, random)
            if len(nodes) >= MOST_LOOKED_AT:
                break
    return cheapest(nodes, keys, now, table.pool)


def cheapest(
    nodes: Sequence[Node | None], keys: Sequence[tuple[int, int]], now: float, pool: float = 1.0
) -> Node | None:
    """The node that costs the least, where a share of the others' pools is in use; None if none has
    room.
    """
    chosen, least = None, FULL
    for node in nodes:
        if node is not None:
            cost = node.seconds(now) - node.found(keys) * node.token_seconds
            over = node.pool - pool
            if over > 0.0:
                cost += CROWDED_SECONDS * over * over / max(pool, LITTLE)
            if cost < least:
                chosen, least = node, cost
    return chosen
