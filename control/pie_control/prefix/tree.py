"""A radix tree over token ids with one page per edge: maps a prefix to its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
