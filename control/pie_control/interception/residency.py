"""Where an instance stands with its pages, as a state machine: its states, events and transitions.

One `Residency` per instance and model. An instance without a record is `RESIDENT`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from pie_control.interception.absence import Absence

if TYPE_CHECKING:
    from pie_control.instances.instance import Blocker, Instance


class State(Enum):
    """Where an instance stands with its pages."""

    RESIDENT = auto()  # all its pages are in the pool, and it may run
    SWAPPED = auto()  # it is paused, and some of its pages are in host memory
    HELD = (
        auto()
    )  # it makes way for an instance that needs its pages: no turn until that is settled
    WAITING = auto()  # it waits for pages: those of a call, its own that are away, or both


class Event(Enum):
    """What happens to an instance's pages."""

    ASK = auto()  # a call needs more pages than are free
    WAKE = auto()  # its turn has come
    EVICT = auto()  # pages of it have moved to host memory
    HOLD = auto()  # another instance needs its pages, and it must make way
    RELEASE = auto()  # no other instance needs its pages any longer
    SERVE = auto()  # it has got its pages, or an error in their place


TRANSITIONS: dict[State, dict[Event, State]] = {
    State.RESIDENT: {
        Event.ASK: State.WAITING,
        Event.EVICT: State.SWAPPED,
        Event.HOLD: State.HELD,
    },
    State.SWAPPED: {
        Event.EVICT: State.SWAPPED,  # more of its pages
        Event.WAKE: State.WAITING,  # its pages come back before it runs
        # Its turn is on the way. It would wait for its own pages then; it does so from now on,
        # because a turn that comes while an instance is held is refused, and nothing would give it
        # another.
        Event.HOLD: State.WAITING,
    },
    State.HELD: {
        Event.WAKE: State.HELD,  # the turn is refused, and given once it is released
        Event.EVICT: State.WAITING,  # from now on it waits for what was taken
        Event.RELEASE: State.RESIDENT,
    },
    State.WAITING: {
        Event.WAKE: State.WAITING,  # the turn is refused, and given once it is served
        Event.EVICT: State.WAITING,  # another instance took its pages while it waited
        Event.SERVE: State.RESIDENT,
    },
}


@dataclass(slots=True, eq=False)
class Residency:
    """One instance that is not resident.

    Attributes:
        instance: whose pages these are.
        absence: its pages that are in host memory.
        state: where it stands.
        woken: its turn has come and was refused, so it must be given one.
        count: pages that its call needs, in addition to those of `absence`.
        take: the call that waits for pages; None if it only waits for its own.
        answer: gets what the call returns.
        since: when it began to wait, in seconds of the evictor's clock.
    """

    instance: Instance
    absence: Absence
    state: State = State.RESIDENT
    woken: bool = False
    count: int = 0
    take: Callable[[], Any] | None = None
    answer: Callable[[Any], None] = field(default=lambda value: None)
    since: float = 0.0

    @property
    def need(self) -> int:
        """Pages of the pool that it takes to serve it."""
        return self.count + self.absence.pages


class Residencies:
    """The records of one model's instances, and the one place where their states change.

    A recorded instance is blocked: it gets no turn, and `blocker` is asked when one comes.
    """

    def __init__(self, blocker: Blocker) -> None:
        self._blocker = blocker
        self._records: dict[Instance, Residency] = {}
        self._by_state: dict[State, dict[Instance, Residency]] = {state: {} for state in State}
        # Asked at every turn, and Python hashes an enum's members slowly.
        self._waiting = self._by_state[State.WAITING]
        self._held = self._by_state[State.HELD]

    def find(self, instance: Instance) -> Residency | None:
        """The record of an instance; None if it is resident."""
        return self._records.get(instance)

    def state(self, instance: Instance) -> State:
        """Where an instance stands."""
        record = self._records.get(instance)
        return State.RESIDENT if record is None else record.state

    def those(self, state: State) -> Iterator[Residency]:
        """Records in a state, while they may change."""
        return iter(list(self._by_state[state].values()))

    @property
    def waits(self) -> bool:
        """Whether an instance waits for pages."""
        return bool(self._waiting)

    @property
    def holds(self) -> bool:
        """Whether an instance is held."""
        return bool(self._held)

    def happen(self, record: Residency, event: Event) -> None:
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
        if after is State.RESIDENT:
            del self._records[instance]
            instance.turn.blockers.discard(self._blocker)
            return
        self._by_state[after][instance] = record
        if before is State.RESIDENT:
            self._records[instance] = record
            instance.turn.blockers.add(self._blocker)

    def forget(self, instance: Instance) -> None:
        """Drops the record of an instance that ends."""
        record = self._records.pop(instance, None)
        if record is not None:
            del self._by_state[record.state][instance]
        instance.turn.blockers.discard(self._blocker)
