"""Gateways that place launches themselves, and what each is to be told of the nodes.

A state machine without I/O, beside the directory's. A new follower is told of all nodes, some at a
time, while what changes is told to all: a node that reports before its turn is told whole later.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from pie_cluster.directory.node import Node
from pie_cluster.wire.messages import Change, Gone, Known, News, Report

NEWS_SECONDS = 0.02  # between two messages to a follower, however often nodes report
NEWS_NODES = 256  # that one message tells whole
SILENT_SECONDS = 3.0  # without a word of a follower: it is gone


@dataclass
class _Follower:
    """One gateway."""

    heard: float
    untold: deque[Node]
    number: int = 0  # of the last message


class Followers:
    """Who follows, and what has changed since they were told last."""

    def __init__(self) -> None:
        self._followers: dict[bytes, _Follower] = {}  # by the connection's key
        self._changes: list[Change] = []
        self._waits = False  # there is something to tell
        self._last = -math.inf

    def follow(self, sender: bytes, told: int, nodes: Iterable[Node], now: float) -> None:
        """A gateway asks what is new.

        Args:
            sender: the key that its connection has proved.
            told: number of the last news that it has.
            nodes: all, of which it is told if it has none.
            now: the time.
        """
        follower = self._followers.get(sender)
        if follower is None or not 0 < told <= follower.number:
            follower = self._followers[sender] = _Follower(now, deque(nodes))
        follower.heard = now
        self._waits = True

    def note(self, node: Node, report: Report | None) -> None:
        """As `Directory` tells of changes."""
        if self._followers:
            self._changes.append(report or _state(node, node.heard))
            self._waits = True

    def seconds(self, now: float) -> float:
        """How long to wait for what is due; without end if nothing is."""
        return max(0.0, self._last + NEWS_SECONDS - now) if self._waits else math.inf

    def due(self, now: float) -> list[tuple[bytes, News]]:
        """What is to be sent now, by connection."""
        if self.seconds(now):
            return []
        self._last = now
        self._followers = {
            sender: follower
            for sender, follower in self._followers.items()
            if now - follower.heard < SILENT_SECONDS
        }
        changes, self._changes = self._changes, []
        news = [(sender, _news(each, changes, now)) for sender, each in self._followers.items()]
        self._waits = any(follower.untold for follower in self._followers.values())
        return news


def _news(follower: _Follower, changes: list[Change], now: float) -> News:
    follower.number += 1
    untold = follower.untold
    told = [untold.popleft() for _ in range(min(NEWS_NODES, len(untold)))]
    whole = [_state(node, now) for node in told if node.bucket is not None]
    return News(follower.number, [*changes, *whole], len(untold))


def _state(node: Node, now: float) -> Known | Gone:
    if node.bucket is None:
        return Gone(node.life.node)
    return Known(node.as_join(now), int((now - node.heard) * 1000))
