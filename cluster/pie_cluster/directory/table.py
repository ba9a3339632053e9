"""The table of nodes, with an index for each question that a placement asks.

No method that a placement uses looks at all nodes: members of sets are drawn at random. Hints of a
node and holders of a key are bounded.

A launch's keys are what it may find cached, with about the tokens of each, most first: the
beginnings of its prompt, or its user and program where the program makes the prompt.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import islice, takewhile
from random import Random
from typing import Generic, TypeAlias, TypeVar

from pie_cluster.directory.node import FULL, Node
from pie_cluster.wire.messages import MOST_HINTS, Load

Keys: TypeAlias = Sequence[tuple[int, int]]

MOST_NODES = 16384
CROWDED_SECONDS = 1.0  # that a pool twice as full as others costs, of those that are full
LITTLE = 0.05  # of a pool, which is no crowd
MOST_HOLDERS = 64  # nodes that one key leads to; what more have it are found by chance
OWN_TOKENS = 512  # that a launch computes beside what it may find, where nothing is known
LATE_SECONDS = 5.0  # after its launch is placed, a prompt may be computed and cached
MOST_LEARNED = 1 << 16  # programs of users of which nodes have told what they cache

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
        self._with_room: RandomSet[Node] = RandomSet()  # of these
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
        """A node with room for a launch, each as likely as any other."""
        return self._with_room.draw(random)

    def any_but(self, avoid: Sequence[str], random: Random) -> Node | None:
        """A node with room whose life is not to be avoided, each as likely as any other."""
        members = self._with_room.members
        some = random.sample(members, min(len(members), len(avoid) + 1))
        return next((node for node in some if str(node.life) not in avoid), None)

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
        return node in self._with_room

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
        if not node.has_room:
            self._with_room.discard(node)

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
        """What a node has cached by key, 0 tokens: nothing. The oldest hints give way."""
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
        (self._with_room.add if node.has_room else self._with_room.discard)(node)

    def _unlist(self, node: Node) -> None:
        """Takes a node out of all that placements draw from."""
        if node in self._ready:
            self._ready.discard(node)
            self._with_room.discard(node)
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
            nodes = self._holders.get(key, [])
            if node in nodes:  # it may be one of too many
                nodes.remove(node)
            if not nodes:
                self._holders.pop(key, None)


def cached(keys: Keys, now: float, table: Table, random: Random) -> Node | None:
    """The cheapest of two random nodes and of two that have the most of its keys cached; None if no
    node has room.

    What a node costs is the seconds before it would begin, less the seconds that its cache saves.
    So a launch follows its prompt's pages until waiting for them takes longer than computing them
    again: load spreads by itself, and a prompt in demand gets more nodes.
    """
    nodes = [table.any(random), table.any(random)]
    for key in keys:
        if (holder := table.holder(key[0], random)) is not None:
            nodes += holder, table.holder(key[0], random)
            break
    return cheapest(nodes, key, now, table.pool)


def cheapest(
    nodes: Sequence[Node | None], key: tuple[int, int], now: float, pool: float = 1.0
) -> Node | None:
    """The node that costs the least for a launch that may find a key, where a share of the others'
    pools is in use; None if none has room.
    """
    chosen, least = None, FULL
    for node in nodes:
        if node is not None:
            cost = node.seconds(now) - node.found(*key) * node.token_seconds
            over = node.pool - pool
            if over > 0.0:
                cost += CROWDED_SECONDS * over * over / max(pool, LITTLE)
            if cost < least:
                chosen, least = node, cost
    return chosen
