"""Cached pages in host memory: an interception's swap, for conversations without a program."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np

from pie_control.prefix.tree import Node
from pie_control.resources.host_memory import HostMemory, swap_parts
from pie_control.resources.pools import PagePool
from pie_py.wire.plan import Int32, SwapIn, SwapOut


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
        """What `send` gets goes ahead of all that is sent later, or calls back with an error;
        `pays`: so many pages move faster than are computed; `drop` forgets nodes and all below, and
        `lose` also ends who uses their pages.
        """
        self._pool = pool
        self._host = host
        self._send = send
        self._pays = pays
        self._drop, self._lose = drop, lose
        self._nodes: OrderedDict[int, Node] = OrderedDict()  # by host page, the oldest first
        host.evict = self._evict

    def move_out(self, nodes: list[Node]) -> Int32:
        """Copies the pages of nodes, of the last ones as many as there is room for; returns these
        pages, which are theirs no longer.
        """
        if not (self._host.free and nodes and self._pays(len(nodes))):
            return pages_of([])
        hosts = self._host.allocate(min(len(nodes), self._host.free))
        # What left for them may have been before them in their texts.
        moving = [node for node in nodes[-len(hosts) :] if node.parent is not None]
        self._host.release(hosts[len(moving) :])
        hosts, pages = hosts[: len(moving)], pages_of(moving)
        self._host.keep_state(hosts, self._pool, pages)
        for part in swap_parts(len(moving)):
            self._send(SwapOut(pages[part], hosts[part]), partial(self._lose, moving[part]))
        for node, host in zip(moving, hosts.tolist(), strict=True):
            node.page, node.host = -1, host
            self._nodes[host] = node
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
            del self._nodes[node.host]
            node.host = -1
        self._host.cached -= len(nodes)
        return hosts

    def _evict(self, count: int) -> None:
        """Frees at least so many host pages, the oldest first."""
        most = len(self._nodes) - count
        while len(self._nodes) > most:
            self._drop([next(iter(self._nodes.values()))])


def pages_of(nodes: list[Node]) -> Int32:
    """The pages `[n]` of nodes, in order."""
    return np.array([node.page for node in nodes], np.int32)
