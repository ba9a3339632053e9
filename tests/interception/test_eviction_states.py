"""Where instances stand with their pages: the transition table, and what holds in every state."""

from __future__ import annotations

from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pie_control.interception.eviction_states import (
    TRANSITIONS,
    EvictionEvent,
    EvictionRecord,
    EvictionRecords,
    EvictionState,
)


class Blocker:
    def wants_to_run(self, instance: object) -> None:
        raise AssertionError("no turn comes here")

    def has_work(self, instance: object) -> None:
        raise AssertionError("no run goes on here")


class Turn:
    def __init__(self) -> None:
        self.blockers: set[object] = set()


class Instance:
    def __init__(self, number: int) -> None:
        self.number = number
        self.turn = Turn()


class Machine:
    """Some instances, and the records of those that are not resident."""

    def __init__(self, count: int) -> None:
        self.blocker = Blocker()
        self.records = EvictionRecords(self.blocker)
        self.instances: list[Any] = [Instance(number) for number in range(count)]

    def record(self, instance: Any) -> EvictionRecord:
        found = self.records.find(instance)
        return found or EvictionRecord(instance, cast(Any, None))

    def check(self) -> None:
        for instance in self.instances:
            record = self.records.find(instance)
            state = self.records.state(instance)
            assert (record is None) is (state is EvictionState.RESIDENT)
            # Who is recorded gets no turn, or it would run without its pages.
            assert (self.blocker in instance.turn.blockers) is (record is not None)
            for other in EvictionState:
                there = record in list(self.records.those(other))
                assert there is (record is not None and other is state)
        states = [self.records.state(instance) for instance in self.instances]
        assert bool(self.records.waiting) is (EvictionState.WAITING in states)
        assert bool(self.records.held) is (EvictionState.HELD in states)


def test_every_state_can_be_left_towards_resident() -> None:
    for start in EvictionState:
        reached, open_states = {start}, [start]
        while open_states:
            for after in TRANSITIONS[open_states.pop()].values():
                if after not in reached:
                    reached.add(after)
                    open_states.append(after)
        assert EvictionState.RESIDENT in reached


def test_an_instance_with_pages_in_host_memory_runs_only_after_it_was_served() -> None:
    for state, events in TRANSITIONS.items():
        for event, after in events.items():
            if after is EvictionState.RESIDENT:
                assert (state, event) in {
                    (EvictionState.WAITING, EvictionEvent.SERVE),
                    (
                        EvictionState.HELD,
                        EvictionEvent.RELEASE,
                    ),  # none of its pages was taken: EVICT leads on
                }
    assert TRANSITIONS[EvictionState.HELD][EvictionEvent.EVICT] is EvictionState.WAITING


def test_an_event_that_cannot_happen_changes_nothing() -> None:
    machine = Machine(1)
    record = machine.record(machine.instances[0])
    with pytest.raises(KeyError):
        machine.records.happen(record, EvictionEvent.SERVE)
    machine.check()


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*EvictionEvent, None])), max_size=60))
def test_records_blockers_and_counts_agree(steps: list[tuple[int, EvictionEvent | None]]) -> None:
    machine = Machine(3)
    for number, event in steps:
        instance = machine.instances[number]
        if event is None:
            machine.records.forget(instance)
        else:
            record = machine.record(instance)
            before = record.state
            if event in TRANSITIONS[before]:
                machine.records.happen(record, event)
                assert machine.records.state(instance) is TRANSITIONS[before][event]
        machine.check()
