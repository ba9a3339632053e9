"""A gateway's copy of the directory's table, which places launches. A state machine without I/O.

Only what the directory tells of is here: nodes that take launches, and not their exports. Whatever
a replica cannot answer for certain, it leaves to the directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from pie_cluster.directory.leases import SILENT_SECONDS
from pie_cluster.directory.node import Node
from pie_cluster.directory.policies import Launch, Policy, choose
from pie_cluster.directory.table import Table
from pie_cluster.wire.keys import program_key
from pie_cluster.wire.messages import Change, Gone, Known, News, Report

TRUST_SECONDS = 1.5  # since the directory's last word; what has changed meanwhile is not known


class Replica:
    """The nodes that take launches, as the directory has told of them."""

    def __init__(self, policy: Policy, random: Random) -> None:
        """Knows nothing.

        Args:
            policy: where a launch goes.
            random: what the policy draws from.
        """
        self.told = 0  # number of the last news; 0: none, or one was missing
        self._policy = policy
        self._random = random
        self._table = Table()
        self._left = 0
        self._heard = 0.0

    @property
    def nodes(self) -> Iterable[Node]:
        """Those that are known."""
        return self._table

    def take(self, news: News, now: float) -> None:
        """The directory tells what is new."""
        if news.number == 1:
            self._table = Table()
        elif news.number != self.told + 1:
            self.told = 0
            return
        self.told, self._left, self._heard = news.number, news.left, now
        for change in news.changes:
            self._change(change, now)

    def place(self, user: str, program: str, now: float) -> Node | None:
        """The node that a launch goes to, and counts for from now on.

        None if the directory has to be asked: not all is known here, or not of late, or no node is
        known that has room.
        """
        if not self.told or self._left or now - self._heard > TRUST_SECONDS:
            return None
        key = program_key(user, program)
        node = choose(self._policy, Launch(key, now), self._table, self._random)
        if node is None or not self._table.has_room(node) or now - node.heard >= SILENT_SECONDS:
            return None
        self._table.place(node, key, now)
        return node

    def _change(self, change: Change, now: float) -> None:
        table = self._table
        match change:
            case Known(join, silent_ms):
                node = Node(join, b"", now)
                node.heard = now - silent_ms / 1000
                table.add(node, now)
                table.hint(node, join.cached)
            case Report(name, _, _, load, cached):
                known = table.find(name)
                if known is not None:  # else it is among those that are not told yet
                    known.heard = now
                    table.hint(known, cached)
                    table.take(known, load, now)
            case Gone(name):
                known = table.find(name)
                if known is not None:
                    table.remove(known)
