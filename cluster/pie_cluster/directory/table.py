"""The table of nodes, with an index for each question that a placement asks.

No method that a placement uses looks at all nodes: members of sets are drawn at random, and nodes
of about the same load lie in one bucket. Hints of a node and holders of a key are bounded.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain
from random import Random
from typing import Generic, TypeVar

from pie_cluster.directory.node import FULL, Node
from pie_cluster.wire.messages import MOST_HINTS, Load

MOST_NODES = 16384
MOST_HOLDERS = 64  # nodes that one key leads to; what more have it are found by chance
OWN_TOKENS = 512  # that a launch computes beside what it may find, where nothing is known
LEARNED = 1.0  # weight of a round of reports in means of all nodes
MOST_LEARNED = 1 << 16  # programs of users of which nodes have told what they cache
BUCKETS = 32  # the last one: nodes without room
LIGHT_SECONDS = (
    0.02  # the width of the first bucket; each is sqrt(2) times as far as the one before
)

Member = TypeVar("Member", bound=Hashable)


class RandomSet(Generic[Member]):
    """A set from which a random member is drawn in constant time: a list, and places in it."""

    __slots__ = ("_places", "members")

    def __init__(self) -> None:
        self.members: list[Member] = []
        self._places: dict[Member, int] = {}

    def __len__(self) -> int:
        return len(self.members)

    def __contains__(self, member: Member) -> bool:
        return member in self._places

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def add(self, member: Member) -> None:
        """Adds a member; one that is there already stays."""
        if member not in self._places:
            self._places[member] = len(self.members)
            self.members.append(member)

    def discard(self, member: Member) -> None:
        """Removes a member, if it is there; the last one takes its place."""
        place = self._places.pop(member, None)
        if place is None:
            return
        last = self.members.pop()
        if last is not member:
            self.members[place] = last
            self._places[last] = place

    def draw(self, random: Random) -> Member | None:
        """A member, each as likely as any other; None of an empty set."""
        members = self.members
        return members[int(random.random() * len(members))] if members else None


class Table:
    """Nodes by name, and what leads to them: load, and what they have cached."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._ready: RandomSet[Node] = RandomSet()
        self._buckets: list[RandomSet[Node]] = [RandomSet() for _ in range(BUCKETS)]
        self._holders: dict[int, list[Node]] = {}
        self._learned: OrderedDict[int, int] = OrderedDict()  # tokens by key
        self._held = float(OWN_TOKENS)  # tokens that an instance holds, as nodes have told
        self.pool = 0.0  # the share of a node's pool that is used, likewise

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    # Questions

    def find(self, name: str) -> Node | None:
        """The node of this name, in whatever state."""
        return self._nodes.get(name)

    @property
    def ready(self) -> int:
        """How many nodes take launches."""
        return len(self._ready)

    def any(self, random: Random) -> Node | None:
        """A node that takes launches, each as likely as any other."""
        return self._ready.draw(random)

    def lightest(self, random: Random) -> Node | None:
        """One of the nodes with the least load, as far as buckets tell."""
        for bucket in self._buckets:
            if bucket.members:  # asked of the list: `__len__` is a call of Python
                return bucket.draw(random)
        return None

    def lightest_but(self, avoid: Sequence[str]) -> Node | None:
        """One of the nodes with room and the least load whose lives are not to be avoided.

        Looks at as many nodes as are to be avoided, and one more.
        """
        with_room = chain.from_iterable(self._buckets[:-1])
        return next((node for node in with_room if str(node.life) not in avoid), None)

    def holder(self, key: int, random: Random) -> Node | None:
        """A node that has something of this key cached, and takes launches."""
        holders = self._holders.get(key)
        return holders[int(random.random() * len(holders))] if holders else None

    def expected(self, key: int) -> int:
        """The tokens that a launch of a key may find: as few as nodes have told lately, for the
        first one on a node tells all that it has; 0 if none has told.
        """
        return self._learned.get(key, 0)

    def has_room(self, node: Node) -> bool:
        """Whether a node takes launches, and has room for one."""
        return node.bucket is not None and node.bucket != BUCKETS - 1

    # Changes

    def add(self, node: Node, now: float) -> None:
        """Adds a node, in the place of an earlier life if there is one."""
        former = self._nodes.get(node.life.node)
        if former is not None:
            self.remove(former)
        self._nodes[node.life.node] = node
        self.refresh(node, now)

    def remove(self, node: Node) -> None:
        """Forgets a node and all that leads to it."""
        del self._nodes[node.life.node]
        self._unlist(node)

    def take(self, node: Node, load: Load, now: float) -> None:
        """A node has reported its load."""
        node.take(load, now)
        if node.has_worker:
            part = LEARNED / max(1, len(self._ready))
            self.pool += (node.pool - self.pool) * part
            if load.instances:
                self._held += (load.used_tokens / load.instances - self._held) * part
        if not node.has_worker:
            self.hint(node, [(key, 0) for key in node.cached])
        self.refresh(node, now)

    def place(self, node: Node, keys: Sequence[tuple[int, int]], now: float) -> None:
        """A launch that may find some keys goes to a node, which counts from now on as
        having cached what it computes: so the launches of a burst stay together, and those of a
        prompt, of which no node reports.
        """
        found, new = 0, []
        for key, tokens in keys:
            known = node.cached.pop(key, None)
            if known is None:
                new.append((key, tokens))
            else:
                node.cached[key] = known  # it is the newest again
                found = found or tokens
        held = max(OWN_TOKENS + keys[0][1], int(self._held))
        node.place(held - found, now)
        if new:
            self.hint(node, new)
        self.refresh(node, now)

    def learn(self, node: Node, cached: Iterable[tuple[int, int]]) -> None:
        """A node tells what it has cached, 0 tokens: nothing any more."""
        cached = list(cached)
        for key, tokens in cached:
            if tokens:
                known = self._learned.get(key, tokens)
                self._learned[key] = min(tokens, known + (tokens - known) // 8)
                self._learned.move_to_end(key)
        while len(self._learned) > MOST_LEARNED:
            self._learned.popitem(last=False)
        self.hint(node, cached)

    def hint(self, node: Node, cached: Iterable[tuple[int, int]]) -> None:
        """What a node has cached by key, 0 tokens: nothing. The oldest hints give way."""
        for key, tokens in cached:
            if node.cached.pop(key, None) is not None and not tokens:
                self._forget((key,), node)
            if tokens:
                node.cached[key] = tokens
                if node.bucket is not None:
                    self._lead(key, node)
        while len(node.cached) > MOST_HINTS:
            oldest = next(iter(node.cached))
            del node.cached[oldest]
            self._forget((oldest,), node)

    def refresh(self, node: Node, now: float) -> None:
        """Puts a node where its state and load say; to be called when they have changed."""
        if node.silent or node.drain_until is not None or not node.has_worker:
            self._unlist(node)
            return
        bucket = bucket_of(node.seconds(now))
        if node.bucket is None:
            self._ready.add(node)
            for key in node.cached:
                self._lead(key, node)
        elif node.bucket == bucket:
            return
        else:
            self._buckets[node.bucket].discard(node)
        node.bucket = bucket
        self._buckets[bucket].add(node)

    def _unlist(self, node: Node) -> None:
        """Takes a node out of all that placements draw from."""
        if node.bucket is None:
            return
        self._ready.discard(node)
        self._buckets[node.bucket].discard(node)
        node.bucket = None
        self._forget(node.cached, node)

    def _lead(self, key: int, node: Node) -> None:
        nodes = self._holders.setdefault(key, [])
        if len(nodes) < MOST_HOLDERS and node not in nodes:
            nodes.append(node)

    def _forget(self, keys: Iterable[int], node: Node) -> None:
        for key in keys:
            nodes = self._holders.get(key, [])
            if node in nodes:  # it may be one of too many
                nodes.remove(node)
            if not nodes:
                self._holders.pop(key, None)


def bucket_of(seconds: float) -> int:
    """The bucket of nodes with so much before a launch; buckets grow with what is in them."""
    if seconds == FULL:
        return BUCKETS - 1
    return min(BUCKETS - 2, int(2 * math.log2(1 + seconds / LIGHT_SECONDS)))
