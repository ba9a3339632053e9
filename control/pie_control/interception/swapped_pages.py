"""Pages that the server takes from an instance which does not run, and puts back before it does.

Unlike a guest's own (`api/offload.py`), these moves are no commands of the instance: they go to
the worker before everything that is sent from now on. So the pages are free for others at once,
provided that the instance has nothing queued that names them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.resources.addresses import EMPTY, entries_of, host_pages_of, is_on_host
from pie_control.resources.host_memory import swap_parts
from pie_control.resources.space import Space
from pie_py.wire.plan import SwapIn, SwapOut

Send: TypeAlias = Callable[[SwapIn | SwapOut], None]  # ahead of all that is sent later


class SwappedPages:
    """The pages of a space that are away without its instance knowing."""

    __slots__ = ("_space", "addresses")

    def __init__(self, space: Space) -> None:
        self._space = space
        self.addresses: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def pages(self) -> int:
        """Pages of the pool that are needed to bring all back."""
        return len(self.addresses)

    def move_out(self, send: Send, most: int) -> int:
        """Moves out up to `most` unshared pages, empty ones first; returns how many.

        Empty ones take no room on the host; of the others as many go as find room there.
        """
        space = self._space
        pool, host = space.page_pool, space.host
        addresses, pages = space.pages.all_resident()
        alone = np.flatnonzero(~pool.shared(pages))
        # The last pages of a text come first: those before them may be what others can share.
        filled = pool.used[pages[alone]] > 0
        empty, full = alone[~filled], alone[filled][::-1]
        empty = empty[:most]
        full = full[: min(most - len(empty), host.pool.free)]
        chosen = np.concatenate([empty, full])
        addresses, pages = addresses[chosen], pages[chosen]
        entries = np.full(len(pages), EMPTY, np.int32)
        if len(full):
            sources = pages[len(empty) :]
            targets = host.take(len(full))
            host.pool.keep_state(targets, pool, sources)
            entries[len(empty) :] = entries_of(targets)
            for part in swap_parts(len(full)):
                send(SwapOut(sources[part], targets[part]))
        space.pages.set_entries(addresses, entries)
        pool.release(pages)
        self.addresses = np.concatenate([self.addresses, addresses])
        return len(pages)

    def bring_back(self, send: Send, most: int) -> int:
        """Brings up to `most` pages back, for which the pool has room; returns how many."""
        space = self._space
        pool, host = space.page_pool, space.host
        addresses = self.addresses[:most]
        entries = space.pages.entries_at(addresses)
        pages = pool.allocate(len(entries))
        full = is_on_host(entries)
        sources, targets = host_pages_of(entries[full]), pages[full]
        host.pool.restore_state(sources, pool, targets)
        for part in swap_parts(len(sources)):
            send(SwapIn(sources[part], targets[part]))
        space.pages.set_entries(addresses, pages)
        host.release(sources)
        self.addresses = self.addresses[most:]
        return len(pages)


def movable(space: Space) -> tuple[int, int]:
    """Pages that `move_out` could move, host memory permitting: all, and the filled ones."""
    _, pages = space.pages.all_resident()
    alone = pages[~space.page_pool.shared(pages)]
    return len(alone), int(np.count_nonzero(space.page_pool.used[alone]))
