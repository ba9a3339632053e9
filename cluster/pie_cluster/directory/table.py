"""The table of nodes, with an index for each question that a placement asks.

No method that a placement uses looks at all nodes: members of sets are drawn at random. Hints of a
node and holders of a key are bounded.

A launch's keys are what it may find cached, with about the tokens of each, most first: the
beginnings of its prompt, or its user and program where the program makes the prompt.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from random import Random
from typing import TypeAlias

from pie_cluster.directory.node import Node
from pie_cluster.wire.messages import MOST_HINTS, Load

Keys: TypeAlias = Sequence[tuple[int, int]]

MOST_NODES = 16384
POOL_SECONDS = 2.0  # that a full pool counts as, beside the seconds of waiting prompts
CROWDED_SECONDS = 1.0  # that a pool twice as full as others costs, of those that are full
LITTLE = 0.05  # of a pool, which is no crowd
MOST_HOLDERS = 64  # nodes that one key leads to; what more have it are found by chance
OWN_TOKENS = 512  # that a launch computes beside what it may find, where nothing is known
LATE_SECONDS = 5.0  # after its launch is placed, a prompt may be computed and cached
MOST_LEARNED = 1 << 16  # programs of users of which nodes have told what they cache


class Room:
    """Nodes that have room: a list, from which one is drawn in constant time, and places in it.
    Beside it are their numbers, for nodes themselves are in no cache of a CPU.
    """

    def __init__(self) -> None:
        self.members: list[Node] = []
        self.places: dict[Node, int] = {}
        self._pools, self._frees = array("d"), array("d")

    def __len__(self) -> int:
        return len(self.members)

    def put(self, node: Node) -> None:
        """Adds a node if it has room, or takes its numbers again; removes it if it has none."""
        place = self.places.get(node)
        if not node.has_room:
            self.discard(node)
        elif place is None:
            self.places[node] = len(self.members)
            self.members.append(node)
            self._pools.append(node.pool)
            self._frees.append(node.free_at)
        else:
            self._pools[place], self._frees[place] = node.pool, node.free_at

    def discard(self, node: Node) -> None:
        """Removes a node, if it is there; the last one takes its place."""
        place = self.places.pop(node, None)
        if place is not None:
            last = self.members.pop()
            pool, free = self._pools.pop(), self._frees.pop()
            if last is not node:
                self.members[place], self.places[last] = last, place
                self._pools[place], self._frees[place] = pool, free

    def draw(self, random: Random) -> int:
        """A place, each as likely as any other, of at least one."""
        return int(random.random() * len(self.members))

    def seconds(self, place: int, now: float, pool: float) -> float:
        """The wait of a launch at a place: seconds of prompts before it, fewer as time passes, and
        the pool's share as seconds, more where that is above a share of the others'.
        """
        waiting, own = self._frees[place] - now, self._pools[place]
        cost, over = POOL_SECONDS * own, own - pool
        if over > 0.0:
            cost += CROWDED_SECONDS * over * over / max(pool, LITTLE)
        return cost + waiting if waiting > 0 else cost


class Table:
    """Nodes by name, and what leads to them: load, and what they have cached."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._ready: set[Node] = set()
        self.room = Room()  # of these
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

    def any_but(self, avoid: Sequence[str], random: Random) -> Node | None:
        """A node with room whose life is not to be avoided, each as likely as any other."""
        members = self.room.members
        some = random.sample(members, min(len(members), len(avoid) + 1))
        return next((node for node in some if str(node.life) not in avoid), None)

    def holders(self, key: int, random: Random) -> Sequence[Node]:
        """Two nodes at most that have something of this key cached, and take launches."""
        nodes = self._holders.get(key, ())
        if len(nodes) < 2:
            return nodes
        return [nodes[int(random.random() * len(nodes))] for _ in range(2)]

    def expected(self, key: int) -> int:
        """The tokens that a launch of a key may find: as few as nodes have told lately, for the
        first one on a node tells all that it has; 0 if none has told.
        """
        return self._learned.get(key, 0)

    # Changes

    def add(self, node: Node) -> None:
        """Adds a node, in the place of an earlier life if there is one."""
        former = self._nodes.get(node.life.node)
        if former is not None:
            self.remove(former)
        self._nodes[node.life.node] = node
        self.refresh(node)

    def remove(self, node: Node) -> None:
        """Forgets a node and all that leads to it."""
        del self._nodes[node.life.node]
        self._unlist(node)

    def take(self, node: Node, load: Load, now: float) -> None:
        """A node has reported its load."""
        node.take(load, now)
        if node.has_worker:
            part = 1 / max(1, len(self._ready))  # of a mean of all nodes
            self.pool += (node.pool - self.pool) * part
            if load.instances:
                self._held += (load.used_tokens / load.instances - self._held) * part
        rested = 0.0 if load.rested_ms is None else now - load.rested_ms / 1000 - LATE_SECONDS
        since = rested if node.has_worker else now + 1.0
        gone = takewhile(lambda key: node.cached[key][1] < since, node.cached)
        self.hint(node, [(key, 0) for key in gone], now)
        self.refresh(node)

    def place(self, node: Node, keys: Keys, now: float) -> None:
        """A launch that may find some keys goes to a node, which counts from now on as
        having cached what it computes: so the launches of a burst stay together, and those of a
        prompt, of which no node reports.
        """
        found, cached = 0, node.cached
        for key, tokens in keys:
            if known := cached.pop(key, None):
                cached[key] = known[0], now  # it is the newest again
                found = found or tokens
            elif tokens:
                cached[key] = tokens, now
                self._lead(key, node)
        node.place(max(OWN_TOKENS + keys[0][1], int(self._held)) - found, now)
        self._bound(node)
        self.room.put(node)

    def learn(self, node: Node, cached: Keys, now: float) -> None:
        """A node tells what it has cached, 0 tokens: nothing any more."""
        for key, tokens in cached:
            if tokens:
                known = self._learned.get(key, tokens)
                self._learned[key] = min(tokens, known + (tokens - known) // 8)
                self._learned.move_to_end(key)
        while len(self._learned) > MOST_LEARNED:
            self._learned.popitem(last=False)
        self.hint(node, cached, now)

    def hint(self, node: Node, cached: Iterable[tuple[int, int]], now: float) -> None:
        """Notes tokens that a node has cached, by key; 0 are none. The oldest hints give way."""
        for key, tokens in cached:
            if node.cached.pop(key, None) is not None and not tokens:
                self._forget((key,), node)
            if tokens:
                node.cached[key] = tokens, now
                if node in self._ready:
                    self._lead(key, node)
        self._bound(node)

    def refresh(self, node: Node) -> None:
        """Puts a node where its state and load say; to be called when they have changed."""
        if node.silent or node.drain_until is not None or not node.has_worker:
            self._unlist(node)
            return
        if node not in self._ready:
            self._ready.add(node)
            for key in node.cached:
                self._lead(key, node)
        self.room.put(node)

    def _unlist(self, node: Node) -> None:
        """Takes a node out of all that placements draw from."""
        if node in self._ready:
            self._ready.discard(node)
            self.room.discard(node)
            self._forget(node.cached, node)

    def _bound(self, node: Node) -> None:
        oldest = list(islice(node.cached, max(0, len(node.cached) - MOST_HINTS)))
        self._forget(oldest, node)
        for key in oldest:
            del node.cached[key]

    def _lead(self, key: int, node: Node) -> None:
        nodes = self._holders.setdefault(key, [])
        if len(nodes) < MOST_HOLDERS and node not in nodes:
            nodes.append(node)

    def _forget(self, keys: Iterable[int], node: Node) -> None:
        for key in keys:
            nodes = self._holders.pop(key, [])
            if node in nodes:  # it may be one of too many
                nodes.remove(node)
            if nodes:
                self._holders[key] = nodes


def cached(keys: Keys, now: float, table: Table, random: Random) -> Node | None:
    """The cheapest of two random nodes and of two that have the most of its keys cached; None if no
    node has room.

    What a node costs is the seconds before it would begin, less the seconds that its cache saves.
    So a launch follows its prompt's pages until waiting for them takes longer than computing them
    again: load spreads by itself, and a prompt in demand gets more nodes.
    """
    room, pool = table.room, table.pool
    if not room.members:
        return None
    one, other = room.draw(random), room.draw(random)
    chosen, least = room.members[one], room.seconds(one, now, pool)
    if (cost := room.seconds(other, now, pool)) < least:
        chosen, least = room.members[other], cost
    for key, most in keys:
        holders = table.holders(key, random)
        for node in holders:
            if (place := room.places.get(node)) is not None:
                cost = room.seconds(place, now, pool) - node.found(key, most) * node.token_seconds
                if cost < least:
                    chosen, least = node, cost
        if holders:
            break
    return chosen
