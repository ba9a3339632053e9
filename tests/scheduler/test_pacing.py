"""How long the worker may be kept waiting, and how many steps a plan may have."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pie_control.scheduler.pacing import (
    CERTAIN,
    GATHER_SECONDS,
    MOST_STEPS,
    TURNS_SECONDS,
    Pacing,
    RunningPlans,
)
from pie_py.wire.plan import Plan


@pytest.mark.parametrize(
    ("step_seconds", "most"),
    [(0.0, MOST_STEPS), (0.0005, MOST_STEPS), (0.003, 5), (0.008, 2), (0.01, 1), (1.0, 1)],
)
def test_a_plan_has_as_many_steps_as_fit(step_seconds: float, most: int) -> None:
    made = Pacing()
    assert made.steps_of("test") == 1
    seen = []
    for _ in range(10):
        made.plan_took("test", made.steps_of("test") * step_seconds, made.steps_of("test"))
        seen.append(made.steps_of("test"))
    assert seen == [min(most, 2**plans) for plans in range(1, 11)]


def test_after_a_cut_plans_grow_again() -> None:
    made = Pacing()
    for _ in range(10):
        made.plan_took("test", 0.0, made.steps_of("test"))
    made.cut()
    made.plan_took("test", 0.001, 3)
    assert made.steps_of("test") == 2
    made.cut()
    assert made.steps_of("test") == 1


def pacing(plan_seconds: float = 0.02) -> Pacing:
    made = Pacing()
    made.plan_took("test", plan_seconds)
    return made


def send(made: Pacing, now: float) -> None:
    made.sent(now, Plan(1, "test", []), behind=False)


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("plan_seconds", [0.004, 3.0])
def test_an_idle_worker_waits_for_launches_only_so_long(plan_seconds: float, goes_on: bool) -> None:
    """Steps of others wait no longer than a step takes."""
    made = pacing(plan_seconds)
    most = min(plan_seconds, GATHER_SECONDS) if goes_on else GATHER_SECONDS
    assert made.gathers(5.0, goes_on=goes_on)
    assert made.gathers(5.0 + most * 0.9, goes_on=goes_on)
    assert not made.gathers(5.0 + most * 1.1, goes_on=goes_on)
    send(made, 5.0)  # the next burst is waited for as long again
    assert made.gathers(5.0 + most * 1.1, goes_on=goes_on)


@pytest.mark.parametrize("plan_seconds", [0.004, 0.05, 3.0])
def test_an_idle_worker_waits_for_turns_no_longer_than_a_plan_takes(plan_seconds: float) -> None:
    made = pacing(plan_seconds)
    most = min(plan_seconds, TURNS_SECONDS)
    for now in (1.0, 1.0 + most * 0.9):
        assert made.waits_for_turns(now, caught_up=False)
    assert not made.waits_for_turns(1.0 + most * 1.1, caught_up=False)
    # When guests have caught up, the next wait counts from its own start.
    assert not made.waits_for_turns(1.0 + most * 1.1, caught_up=True)
    assert made.waits_for_turns(1.0 + most * 1.2, caught_up=False)


@given(
    st.lists(st.tuples(st.floats(0.0001, 0.01), st.booleans(), st.booleans()), max_size=200),
    st.floats(0, 1),
)
def test_an_idle_worker_is_never_kept_waiting_for_ever(
    turns: list[tuple[float, bool, bool]], plan_seconds: float
) -> None:
    made, now, since = pacing(plan_seconds), 0.0, 0.0
    for seconds, caught_up, launches in turns:
        now += seconds
        waits = launches and made.gathers(now, goes_on=False)
        if not waits and not made.waits_for_turns(now, caught_up=caught_up):
            send(made, now)
            since = now
        assert now - since <= GATHER_SECONDS + TURNS_SECONDS + 0.021


def test_how_long_a_plan_takes_is_told_by_the_best_rate_before() -> None:
    plans = RunningPlans()
    assert plans.left(0.0) == 0.0
    plans.sent(1.0, 100)
    assert plans.left(1.0) == 0.0  # nothing is known
    plans.sent(1.1, 500)  # behind it
    plans.over(2.0, 1.0)  # 100 in a second
    assert plans.left(2.0) == pytest.approx(CERTAIN * 5.0)
    assert plans.left(4.0) == pytest.approx(CERTAIN * 5.0 - 2.0)
    assert plans.left(9.0) == 0.0
    plans.sent(6.5, 10)
    plans.over(7.0, 5.0)
    assert plans.left(7.0) == pytest.approx(CERTAIN * 0.1)
    plans.over(8.0, 1.0)  # ten in a second: a plan of few inputs says little of one of many
    plans.sent(9.0, 100)
    assert CERTAIN < plans.left(9.0) < 1.1
    plans.lost()
    assert plans.left(9.0) == 0.0
