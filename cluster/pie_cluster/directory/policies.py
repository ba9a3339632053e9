"""The policy that chooses a launch's node. It sees the table through methods that look at a few
nodes each, so that a decision costs the same however many there are.

A launch's keys are what it may find cached, with about the tokens of each, most first: the
beginnings of its prompt, or its user and program where the program makes the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeAlias

from pie_cluster.directory.node import FULL, Node
from pie_cluster.directory.table import Table

Keys: TypeAlias = Sequence[tuple[int, int]]
CROWDED_SECONDS = 1.0  # that a pool twice as full as others costs, of those that are full
LITTLE = 0.05  # of a pool, which is no crowd


def cached(keys: Keys, now: float, table: Table, random: Random) -> Node | None:
    """The cheapest of two random nodes and of two that have the most of its keys cached; None if no
    node has room.

    What a node costs is the seconds before it would begin, less the seconds that its cache saves.
    So a launch follows its prompt's pages until waiting for them takes longer than computing them
    again: load spreads by itself, and a prompt in demand gets more nodes.
    """
    nodes = [table.any(random), table.any(random)]
    for key, _ in keys:
        if (holder := table.holder(key, random)) is not None:
            nodes += holder, table.holder(key, random)
            break
    return cheapest(nodes, keys, now, table.pool)


def cheapest(
    nodes: Sequence[Node | None], keys: Keys, now: float, pool: float = 1.0
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
