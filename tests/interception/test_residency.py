"""Where instances stand with their pages: the transition table, and what holds in every state."""

from __future__ import annotations

from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pie_control.interception.residency import TRANSITIONS, Event, Residencies, Residency, State


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
        self.residencies = Residencies(self.blocker)
        self.instances: list[Any] = [Instance(number) for number in range(count)]

    def record(self, instance: Any) -> Residency:
        found = self.residencies.find(instance)
        return found or Residency(instance, cast(Any, None))

    def check(self) -> None:
        for instance in self.instances:
            record = self.residencies.find(instance)
            state = self.residencies.state(instance)
            assert (record is None) is (state is State.RESIDENT)
            # Who is recorded gets no turn, or it would run without its pages.
            assert (self.blocker in instance.turn.blockers) is (record is not None)
            for other in State:
                there = record in list(self.residencies.those(other))
                assert there is (record is not None and other is state)
        states = [self.residencies.state(instance) for instance in self.instances]
        assert self.residencies.waits is (State.WAITING in states)
        assert self.residencies.holds is (State.HELD in states)


def test_every_state_can_be_left_towards_resident() -> None:
    for start in State:
        reached, open_states = {start}, [start]
        while open_states:
            for after in TRANSITIONS[open_states.pop()].values():
                if after not in reached:
                    reached.add(after)
                    open_states.append(after)
        assert State.RESIDENT in reached


def test_an_instance_with_pages_in_host_memory_runs_only_after_it_was_served() -> None:
    for state, events in TRANSITIONS.items():
        for event, after in events.items():
            if after is State.RESIDENT:
                assert (state, event) in {
                    (State.WAITING, Event.SERVE),
                    (State.HELD, Event.RELEASE),  # none of its pages was taken: EVICT leads on
                }
    assert TRANSITIONS[State.HELD][Event.EVICT] is State.WAITING


def test_an_event_that_cannot_happen_changes_nothing() -> None:
    machine = Machine(1)
    record = machine.record(machine.instances[0])
    with pytest.raises(KeyError):
        machine.residencies.happen(record, Event.SERVE)
    machine.check()


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from([*Event, None])), max_size=60))
def test_records_blockers_and_counts_agree(steps: list[tuple[int, Event | None]]) -> None:
    machine = Machine(3)
    for number, event in steps:
        instance = machine.instances[number]
        if event is None:
            machine.residencies.forget(instance)
        else:
            record = machine.record(instance)
            before = record.state
            if event in TRANSITIONS[before]:
                machine.residencies.happen(record, event)
                assert machine.residencies.state(instance) is TRANSITIONS[before][event]
        machine.check()
