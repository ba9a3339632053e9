"""A radix tree over token ids with one page per edge: maps a prefix to its pages, of which some are
in host memory: an interception's swap, for conversations without a program.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pie_control.resources.pools import HostMemory, PagePool, swap_parts
from pie_py.wire.plan import Int32, SwapIn, SwapOut

if TYPE_CHECKING:
    from pie_control.instances.futures import Future


class Node:
    """A page whose slots hold the tokens of its edge, after those of its parents."""

    __slots__ = ("children", "edge", "host", "owner", "page", "parent", "pending")

    def __init__(
        self, parent: Node | None, edge: bytes, page: int, pending: Pending | None = None
    ) -> None:
        self.parent = parent  # None for a root, and for a node that has been taken out
        self.edge = edge  # the tokens, as an int32 array's bytes
        self.page = page  # physical; -1 while its content is in host memory,
        self.host = -1  # in this page there
        self.owner: int = -1 if parent is None else parent.owner
        self.pending = pending  # what is to fill it, until it has
        self.children: dict[bytes, Node] = {}


class Pending:
    """Pages that commands under way are going to fill, and the lookups that wait for them."""

    __slots__ = ("end", "nodes", "priority", "waiters")

    def __init__(self, end: int, priority: int) -> None:
        self.end = end  # tokens of its record that have to be done
        self.priority = priority  # of the queue that computes them
        self.nodes: list[Node] = []
        self.waiters: dict[Future, None] = {}  # in order


class Path(NamedTuple):
    """The longest prefix of a text in a tree."""

    nodes: list[Node]  # whose pages are filled
    coming: int  # pages after those that are being filled
    pending: Pending | None  # the last of what fills them


def walk(root: Node, tokens: bytes, width: int) -> Path:
    """Follows a text, the bytes of an int32 array, from a root; those of a page are `width`."""
    nodes: list[Node] = []
    coming = 0
    pending: Pending | None = None
    node = root
    for start in range(0, len(tokens) - width + 1, width):
        child = node.children.get(tokens[start : start + width])
        if child is None:
            break
        node = child
        if node.pending is not None:
            pending = node.pending
            coming += 1
        elif coming:  # filled by another text, below what is still to come
            coming += 1
        else:
            nodes.append(node)
    return Path(nodes, coming, pending)


def grow(
    root: Node, tokens: bytes, pages: list[int], width: int, done: int, pending: Pending
) -> tuple[list[Node], list[Node]]:
    """Adds the nodes of a text that have no page yet: of full pages, the first `done` of them
    filled already; the others wait for `pending`. Returns the nodes of the text, and those of them
    that have got one.
    """
    path: list[Node] = []
    added: list[Node] = []
    node = root
    for at, page in enumerate(pages):
        edge = tokens[at * width : (at + 1) * width]
        child = node.children.get(edge)
        if child is None:
            child = node.children[edge] = Node(node, edge, -1)
        if child.page < 0:
            child.page = page
            if at >= done:
                child.pending = pending
                pending.nodes.append(child)
            added.append(child)
        path.append(child)
        node = child
    return path, added


def cut(node: Node) -> list[Node]:
    """Takes a node and all below it out of its tree, and returns them."""
    if node.parent is None:
        return []
    del node.parent.children[node.edge]
    gone = [node]
    for below in gone:
        below.parent = None
        gone += below.children.values()
    return gone


class Away:
    """The nodes of one model's cache whose pages are in host memory."""

    def __init__(
        self,
        pool: PagePool,
        host: HostMemory,
        send: Callable[[SwapIn | SwapOut, Callable[[str], None]], None],
        pays: Callable[[int], bool],
        drop: Callable[[list[Node]], None],
        lose: Callable[[list[Node], str], None],
    ) -> None:
        """All that `send` gets goes ahead of all that is sent later, or calls back with an error;
        `pays`: so many pages move faster than are computed; `drop` forgets nodes and all below, and
        `lose` also ends who uses their pages.
        """
        self._pool = pool
        self._host = host
        self._send = send
        self._pays = pays
        self._drop, self._lose = drop, lose
        # By owner and host page, the oldest first.
        self._nodes: defaultdict[int, OrderedDict[int, Node]] = defaultdict(OrderedDict)
        host.evict = self._evict

    def move_out(self, nodes: list[Node]) -> Int32:
        """Copies the pages of nodes, as far as there is room, and returns these pages, which are
        theirs no longer. Of the users with the most, with what comes, the oldest have to leave.
        """
        if not (self._host.free and nodes and self._pays(len(nodes))):
            return pages_of([])
        coming: defaultdict[int, deque[Node]] = defaultdict(deque)
        for node in nodes:
            coming[node.owner].append(node)
        while sum(map(len, coming.values())) > self._host.free - self._host.cached:
            self._make_room(coming)
        # What left for them may have been before them in their texts.
        moving = [node for own in coming.values() for node in own if node.parent is not None]
        hosts, pages = self._host.allocate(len(moving)), pages_of(moving)
        self._host.keep_state(hosts, self._pool, pages)
        for part in swap_parts(len(moving)):
            self._send(SwapOut(pages[part], hosts[part]), partial(self._lose, moving[part]))
        for node, host in zip(moving, hosts.tolist(), strict=True):
            node.page, node.host = -1, host
            self._nodes[node.owner][host] = node
        self._host.cached += len(moving)
        return pages

    def bring_back(self, nodes: list[Node]) -> Int32:
        """Gives nodes pages of the pool, which has room for them, and returns these."""
        hosts = self._take(nodes)  # before others move out into the room that these have
        pages = self._pool.allocate(len(nodes))
        self._pool.cache(pages)
        self._host.restore_state(hosts, self._pool, pages)
        for part in swap_parts(len(nodes)):
            self._send(SwapIn(hosts[part], pages[part]), partial(self._lose, nodes[part]))
        self._host.release(hosts)
        self._pool.release(pages)
        for node, page in zip(nodes, pages.tolist(), strict=True):
            node.page = page
        return pages

    def forget(self, nodes: list[Node]) -> None:
        """Frees what nodes have in host memory, if anything."""
        self._host.release(self._take([node for node in nodes if node.host >= 0]))

    def _take(self, nodes: list[Node]) -> Int32:
        hosts = np.array([node.host for node in nodes], np.int32)
        for node in nodes:
            own = self._nodes[node.owner]
            del own[node.host]
            if not own:
                del self._nodes[node.owner]
            node.host = -1
        self._host.cached -= len(nodes)
        return hosts

    def _evict(self, count: int) -> None:
        """Frees at least so many host pages."""
        most = self._host.cached - count
        while self._host.cached > most:
            self._make_room(defaultdict(deque))

    def _make_room(self, coming: defaultdict[int, deque[Node]]) -> None:
        """Has the oldest go of the user with the most nodes, with those that are coming."""
        sizes = Counter({owner: len(own) for owner, own in self._nodes.items()})
        sizes.update({owner: len(own) for owner, own in coming.items()})
        most = max(sizes, key=sizes.__getitem__)
        if most in self._nodes:
            self._drop([next(iter(self._nodes[most].values()))])
        else:
            coming[most].popleft()


def pages_of(nodes: list[Node]) -> Int32:
    """The pages `[n]` of nodes, in order."""
    return np.array([node.page for node in nodes], np.int32)
