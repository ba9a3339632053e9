"""Texts wait for room while what they would take is of conversations that go on soon.

Where more conversations take turns than the pool holds, the pages of each leave before its next
turn, whichever leave first. If a few wait instead until others are over, all turns find theirs
(ThunderAgent, Continuum).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from pie_control.prefix.pauses import Pauses
from pie_control.prefix.tree import Node, pages_of
from pie_py.wire.plan import Int32

if TYPE_CHECKING:
    from pie_control.instances.futures import Future
    from pie_control.instances.instance import Instance
    from pie_control.resources.pools import PagePool
    from pie_control.timers import Timers

WORTH = 10.0  # times as long as a text takes to compute its pages are kept, and others wait
PART = 0.25  # of what is found: a turn that lacks no more goes on at once
TICK = 0.1  # seconds between two looks; one text gets its pages in each


@dataclass(slots=True)
class _Text:
    user: str
    pages: Int32  # [n] found
    stamps: NDArray[np.int64]  # [n] of these then
    whole: int  # pages of all its tokens
    due: float  # when it goes on in any case


class Room:
    """The texts of one model that wait until they may be computed."""

    def __init__(
        self,
        pool: PagePool,
        pauses: Pauses,
        seconds: Callable[[int, int], float],
        timers: Timers,
        clock: Callable[[], float],
    ) -> None:
        """`seconds`: pages from one up to another take to compute; 0 if nothing shall wait."""
        self._pool = pool
        self._pauses = pauses
        self._seconds = seconds
        self._timers = timers
        self._clock = clock
        self._texts: dict[Future, _Text] = {}  # in the order of their coming
        self._asked: WeakSet[Instance] = WeakSet()  # each instance waits once
        self.waits = 0

    def hold(
        self, instance: Instance, nodes: list[Node], whole: int, future: Callable[[], Future]
    ) -> Future | None:
        """When a text of so many pages, of which `nodes` are there, may be computed; None: now."""
        lost = whole - len(nodes)
        if instance in self._asked or lost <= PART * len(nodes):
            return None
        pages = pages_of([node for node in nodes if node.page >= 0])
        most = WORTH * self._seconds(len(nodes), whole) * (1 + len(self._texts))
        stamps, due = self._pool.stamps[pages], self._clock() + most
        text = _Text(instance.user, pages, stamps, whole, due)
        if self._has_room(text):
            return None
        self._asked.add(instance)
        self.waits += 1
        found = future()
        found.on_cancel = partial(self._forget, found)
        self._texts[found] = text
        if len(self._texts) == 1:
            self._timers.call_later(TICK, self._look)
        return found

    def _forget(self, future: Future) -> None:
        self._texts.pop(future, None)

    def _look(self) -> None:
        """Lets the first go on that may."""
        now = self._clock()
        for future, text in self._texts.items():
            if text.due <= now or self._has_room(text):
                del self._texts[future]
                future.resolve()
                break
        if self._texts:
            self._timers.call_later(TICK, self._look)

    def _has_room(self, text: _Text) -> bool:
        """True if there are pages for what is lacking, beside those that are kept."""
        pool = self._pool
        own = text.pages[text.stamps == pool.stamps[text.pages]]
        lacking = text.whole - len(own)
        if lacking <= pool.free - pool.idle:
            return True
        idle, worth = pool.idle_pages(), lambda pages: WORTH * self._seconds(0, pages)
        kept = self._pauses.soon(text.user, self._clock(), worth)
        if not kept[idle].any():
            return True  # to wait would change nothing
        kept[own] = True
        return lacking <= pool.free - int(np.count_nonzero(kept[idle]))
