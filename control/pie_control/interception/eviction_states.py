"""The eviction of an instance's pages, as a state machine: its states, events and transitions.

One `EvictionRecord` per instance and model. An instance without a record is `RESIDENT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.resources.addresses import EMPTY, entries_of, host_pages_of, is_on_host
from pie_control.resources.pools import swap_parts
from pie_control.resources.space import Space
from pie_py.wire.plan import SwapIn, SwapOut

if TYPE_CHECKING:
    from pie_control.instances.instance import Blocker, Instance

Send: TypeAlias = Callable[[SwapIn | SwapOut], None]  # ahead of all that is sent later


class SwappedPages:
    """The pages of a space that are away without its instance knowing.

    Unlike a guest's own (`api/offload.py`), these moves are no commands of the instance: they go to
    the worker before everything that is sent from now on. So the pages are free for others at once,
    provided that the instance has nothing queued that names them.
    """

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


class EvictionState(Enum):
    """Where an instance stands with its pages."""

    RESIDENT = auto()  # all its pages are in the pool, and it may run
    SWAPPED = auto()  # it is paused, and some of its pages are in host memory
    # It makes way for an instance that needs its pages: no turn until that is settled.
    HELD = auto()
    WAITING = auto()  # it waits for pages: those of a call, its own that are away, or both


class EvictionEvent(Enum):
    """An event of an instance's pages."""

    ASK = auto()  # a call needs more pages than are free
    WAKE = auto()  # its turn has come
    EVICT = auto()  # pages of it have moved to host memory
    HOLD = auto()  # another instance needs its pages, and it must make way
    RELEASE = auto()  # no other instance needs its pages any longer
    SERVE = auto()  # it has got its pages, or an error in their place


TRANSITIONS: dict[EvictionState, dict[EvictionEvent, EvictionState]] = {
    EvictionState.RESIDENT: {
        EvictionEvent.ASK: EvictionState.WAITING,
        EvictionEvent.EVICT: EvictionState.SWAPPED,
        EvictionEvent.HOLD: EvictionState.HELD,
    },
    EvictionState.SWAPPED: {
        EvictionEvent.EVICT: EvictionState.SWAPPED,  # more of its pages
        EvictionEvent.WAKE: EvictionState.WAITING,  # its pages come back before it runs
        # Its turn is on the way. It would wait for its own pages then; it does so from now on,
        # because a turn that comes while an instance is held is refused, and nothing would give it
        # another.
        EvictionEvent.HOLD: EvictionState.WAITING,
    },
    EvictionState.HELD: {
        # The turn is refused, and given once it is released.
        EvictionEvent.WAKE: EvictionState.HELD,
        EvictionEvent.EVICT: EvictionState.WAITING,  # from now on it waits for what was taken
        EvictionEvent.RELEASE: EvictionState.RESIDENT,
    },
    EvictionState.WAITING: {
        # The turn is refused, and given once it is served.
        EvictionEvent.WAKE: EvictionState.WAITING,
        # Another instance took its pages while it waited.
        EvictionEvent.EVICT: EvictionState.WAITING,
        EvictionEvent.SERVE: EvictionState.RESIDENT,
    },
}


@dataclass(slots=True, eq=False)
class EvictionRecord:
    """One instance that is not resident.

    Attributes:
        instance: whose pages these are.
        swapped: its pages that are in host memory.
        state: where it stands.
        woken: its turn has come and was refused, so it must be given one.
        count: pages that its call needs, in addition to those of `swapped`.
        take: the call that waits for pages; None if it only waits for its own.
        answer: gets what the call returns.
        since: when it began to wait, in seconds of the evictor's clock.
    """

    instance: Instance
    swapped: SwappedPages
    state: EvictionState = EvictionState.RESIDENT
    woken: bool = False
    count: int = 0
    take: Callable[[], Any] | None = None
    answer: Callable[[Any], None] = field(default=lambda value: None)
    since: float = 0.0

    @property
    def need(self) -> int:
        """Pages of the pool that it takes to serve it."""
        return self.count + self.swapped.pages


class EvictionRecords:
    """The records of one model's instances, and the one place where their states change.

    A recorded instance is blocked: it gets no turn, and `blocker` is asked when one comes.
    """

    def __init__(self, blocker: Blocker) -> None:
        self._blocker = blocker
        self._records: dict[Instance, EvictionRecord] = {}
        self._by_state: dict[EvictionState, dict[Instance, EvictionRecord]] = {
            state: {} for state in EvictionState
        }
        # Asked at every turn, and Python hashes an enum's members slowly.
        self.waiting = self._by_state[EvictionState.WAITING]
        self.held = self._by_state[EvictionState.HELD]

    def find(self, instance: Instance) -> EvictionRecord | None:
        """The record of an instance; None if it is resident."""
        return self._records.get(instance)

    def state(self, instance: Instance) -> EvictionState:
        """Where an instance stands."""
        record = self._records.get(instance)
        return EvictionState.RESIDENT if record is None else record.state

    def those(self, state: EvictionState) -> Iterator[EvictionRecord]:
        """Records in a state, while they may change."""
        return iter(list(self._by_state[state].values()))

    def happen(self, record: EvictionRecord, event: EvictionEvent) -> None:
        """Moves a record to its next state.

        Raises:
            KeyError: if the event cannot happen in this state: a defect of the evictor.
        """
        instance = record.instance
        before, after = record.state, TRANSITIONS[record.state][event]
        if after is before:
            return
        record.state = after
        self._by_state[before].pop(instance, None)
        if after is EvictionState.RESIDENT:
            del self._records[instance]
            instance.turn.blockers.discard(self._blocker)
            return
        self._by_state[after][instance] = record
        if before is EvictionState.RESIDENT:
            self._records[instance] = record
            instance.turn.blockers.add(self._blocker)

    def forget(self, instance: Instance) -> None:
        """Drops the record of an instance that ends."""
        record = self._records.pop(instance, None)
        if record is not None:
            del self._by_state[record.state][instance]
        instance.turn.blockers.discard(self._blocker)
