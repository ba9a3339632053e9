"""Leases of nodes: which ones have not reported for how long, without looking at all of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pie_cluster.directory.node import Node

SILENT_SECONDS = 3.0  # without a report: no placements
GONE_SECONDS = 10.0  # without a report: replaced


class Leases:
    """Nodes in the order of their last reports: who is due is always in front.

    A directory that has stood still itself has read no report meanwhile. It must not take that for
    the nodes' silence, so all leases begin again.
    """

    def __init__(self, now: float) -> None:
        self._heard: dict[Node, None] = {}  # oldest first
        self._silent: dict[Node, None] = {}  # as well
        self._looked = self._awake = now
        self._next = now  # before then none is due

    def renew(self, node: Node, now: float) -> None:
        """A node has reported."""
        self.drop(node)
        node.heard = now
        self._heard[node] = None

    def drop(self, node: Node) -> None:
        """A node has no lease any more."""
        self._heard.pop(node, None)
        self._silent.pop(node, None)

    def is_due(self, now: float) -> bool:
        """Whether a lease may have run out."""
        if now - self._looked > 1.5:  # it was the directory that stood still
            self._awake = now
        self._looked = now
        return now >= self._next

    def take(self, now: float) -> tuple[list[Node], list[Node]]:
        """Nodes that have fallen silent since the last look, and nodes that are gone, whose leases
        are dropped.

        Each node is looked at once for each: what this costs, its silence has paid for.
        """
        silent = list(self._due(self._heard, now, SILENT_SECONDS))
        self._silent.update(dict.fromkeys(silent))
        gone = list(self._due(self._silent, now, GONE_SECONDS))
        self._next = min(
            now + SILENT_SECONDS,  # for nodes that join
            self._end(self._heard, SILENT_SECONDS),
            self._end(self._silent, GONE_SECONDS),
        )
        return silent, gone

    def _due(self, nodes: dict[Node, None], now: float, seconds: float) -> Iterator[Node]:
        while nodes and self._end(nodes, seconds) <= now:
            node = next(iter(nodes))
            del nodes[node]
            yield node

    def _end(self, nodes: dict[Node, None], seconds: float) -> float:
        """When the first of some leases ends."""
        return max(next(iter(nodes)).heard, self._awake) + seconds if nodes else math.inf
