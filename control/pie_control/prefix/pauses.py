"""Conversations that wait for tools: for how long their cached pages are expected to rest.

A page that rests wastes its memory until a text asks for it, and to compute it again costs about
the same for every page. So what wastes the most goes first: the page whose text is expected
back last. Of a text whose conversation waits for a tool that earlier waits for the tool tell, of
any other its time so far (InferCept's estimate where nothing is known), which is LRU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from pie_control.prefix.tree import Node
from pie_py.wire.plan import Int32

if TYPE_CHECKING:
    from pie_control.instances.instance import Account
    from pie_control.resources.pools import PagePool

# Conversations that wait, and pages of all of them, as parts of the pool: those that have waited
# longest are forgotten. Each costs some 20 microseconds of an eviction.
MOST = 512
MOST_TIMES = 8


# By which a text rests longer whose answer a person reads: a conversation goes on after half a
# minute, if at all.
PERSON_SECONDS = 30.0


class History(Protocol):
    """Durations of earlier waits, by user and kind."""

    def add(self, user: str, kind: str, seconds: float) -> None:
        """Notes a wait that has ended."""

    def remaining(self, user: str, kind: str, elapsed: float) -> tuple[float, float]:
        """Seconds that one is expected to last on, and their median."""


@dataclass(slots=True)
class _Pause:
    account: Account  # of the instance, whose record may be gone when the wait ends
    kind: str
    since: float
    placed: float  # when its text was found
    pages: Int32  # [n] of its text, from the first token on
    stamps: NDArray[np.int64]  # [n] of these then: those of a page that is gone are others
    shared: int  # of the pages that other texts have, too: the first ones


class Pauses:
    """The conversations that wait, by the instances that served their last turns."""

    def __init__(self, pool: PagePool, history: History) -> None:
        self._pool = pool
        self._history = history
        self._waiting: OrderedDict[str, _Pause] = OrderedDict()
        self._pages = 0  # of these

    def __len__(self) -> int:
        return len(self._waiting)

    def begin(self, instance: str, account: Account, kind: str, end: Node, now: float) -> None:
        """The conversation whose text ends at a node waits from now on."""
        self._forget(instance)
        none = np.zeros(0, np.int32)
        self._waiting[instance] = _Pause(account, kind, now, now, none, none.astype(np.int64), 0)
        self.place(instance, end, now)
        while len(self._waiting) > MOST or self._pages > MOST_TIMES * len(self._pool.stamps):
            self._forget(next(iter(self._waiting)))

    def place(self, instance: str, end: Node, now: float) -> None:
        """The text of a conversation ends at a node, if it waits."""
        pause = self._waiting.get(instance)
        if pause is None:
            return
        pages, own = text_pages(end)
        self._pages += len(pages) - len(pause.pages)
        pause.pages = pages
        pause.shared = len(pages) - own
        pause.stamps, pause.placed = self._pool.stamps[pause.pages], now

    def end(self, instance: str, user: str | None, now: float) -> tuple[float, Account] | None:
        """A conversation of a user, or of any, goes on if it waits, which is learned. How long it
        has waited, and on whose account.
        """
        pause = self._waiting.get(instance)
        if pause is None or user not in (None, pause.account.user):
            return None
        self._forget(instance)
        self._history.add(pause.account.user, pause.kind, now - pause.since)
        return now - pause.since, pause.account

    def asked(self, user: str, pages: Int32, now: float) -> None:
        """A text with these pages is asked for: the conversation goes on whose own they are, if
        most of these are there. A few may be those of another that begins in the same way.
        """
        if not len(pages):
            return
        asked = set(pages.tolist())
        for instance in [name for name, each in self._waiting.items() if each.account.user == user]:
            pause = self._waiting[instance]
            own, stamps = pause.pages[pause.shared :], pause.stamps[pause.shared :]
            there = own[stamps == self._pool.stamps[own]]
            if len(there) > len(own) // 2 and asked.issuperset(there.tolist()):
                self.end(instance, user, now)

    def _forget(self, instance: str) -> _Pause | None:
        pause = self._waiting.pop(instance, None)
        self._pages -= 0 if pause is None else len(pause.pages)
        return pause

    def rests(self, touched: NDArray[np.float64], now: float) -> NDArray[np.float64]:
        """Seconds `[size]` that pages of the pool, which were `touched` then, are expected to rest.
        A page that several texts have rests until the first of them is asked for.
        """
        rests = now - touched
        expected = []
        for pause in self._waiting.values():
            seconds, _ = self._history.remaining(pause.account.user, pause.kind, now - pause.since)
            there = pause.stamps == self._pool.stamps[pause.pages]
            own = pause.pages[pause.shared :][there[pause.shared :]]
            rests[own[touched[own] <= pause.placed]] = seconds
            expected.append((seconds, pause.pages[there]))
        for seconds, pages in expected:
            rests[pages] = np.minimum(rests[pages], seconds)
        return rests

    def soon(self, user: str, now: float, most: Callable[[int], float]) -> NDArray[np.bool_]:
        """Pages of the pool `[size]` of a user's conversations that are expected to wait less long
        than `most`, of the number of their pages.
        """
        found = np.zeros(self._pool.size, np.bool_)
        for pause in self._waiting.values():
            if pause.account.user != user:
                continue
            seconds, _ = self._history.remaining(user, pause.kind, now - pause.since)
            if seconds < most(len(pause.pages)):
                found[pause.pages[pause.stamps == self._pool.stamps[pause.pages]]] = True
        return found


def text_pages(end: Node) -> tuple[Int32, int]:
    """Pages `[n]` of the pool that have a text which ends at a node, from its first token on, and
    how many of the last ones no other text has.
    """
    pages: list[int] = []
    own, alone, below, node = 0, True, 0, end
    while node.parent is not None:
        alone = alone and len(node.children) == below  # nothing branches off before its end
        if node.page >= 0:
            own += alone
            pages.append(node.page)
        below, node = 1, node.parent
    return np.array(pages[::-1], np.int32), own
