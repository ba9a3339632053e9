"""When a plan is sent: a table of situations, and the times that the worker may be kept waiting."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from pie_control.scheduler.pacing import (
    CERTAIN,
    FOLLOW_SECONDS,
    GATHER_SECONDS,
    MOST_STEPS,
    PLANS_IN_FLIGHT,
    STEPS_IN_FLIGHT,
    TURNS_SECONDS,
    Decision,
    Pacing,
    RunningPlans,
)

# idle, plans at the worker, all guests caught up, launches arriving -> decision, at time 0 with
# plans that take 20 ms.
TABLE = [
    (False, 0, True, False, Decision.NOTHING),  # no worker
    (False, 0, False, True, Decision.NOTHING),
    (True, 0, True, False, Decision.SEND),
    (True, 0, True, True, Decision.GATHER),
    (True, 0, False, False, Decision.AWAIT_TURNS),
    (True, 0, False, True, Decision.GATHER),
    (False, 1, True, False, Decision.FOLLOW),
    (False, 1, True, True, Decision.FOLLOW),  # the worker is busy: launches have time
    (False, 1, False, False, Decision.AWAIT_TURNS),
    (False, PLANS_IN_FLIGHT, True, False, Decision.NOTHING),
    (False, PLANS_IN_FLIGHT, False, True, Decision.NOTHING),
]


# With one or two plans at the worker and all guests caught up: steps that are not answered, whether
# something else waits -> decision.
STEPS_TABLE = [
    (1, STEPS_IN_FLIGHT, False, Decision.FOLLOW),
    (1, STEPS_IN_FLIGHT, True, Decision.FOLLOW),  # what waits goes along with the plan behind
    (1, STEPS_IN_FLIGHT + 1, False, Decision.NOTHING),
    (1, STEPS_IN_FLIGHT + 1, True, Decision.CUT),
    (2, STEPS_IN_FLIGHT, True, Decision.NOTHING),
    (2, STEPS_IN_FLIGHT + 5, False, Decision.NOTHING),
    (2, STEPS_IN_FLIGHT + 5, True, Decision.CUT),
]


@pytest.mark.parametrize(("plans", "steps", "others", "decision"), STEPS_TABLE)
def test_steps_at_the_worker(plans: int, steps: int, others: bool, decision: Decision) -> None:
    for caught_up in (True, steps <= STEPS_IN_FLIGHT):
        made = pacing().decide(
            0.0, idle=False, plans=plans, caught_up=caught_up, steps=steps, others=others
        )
        assert made is decision


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


@pytest.mark.parametrize(("idle", "plans", "caught_up", "launches", "decision"), TABLE)
def test_table(idle: bool, plans: int, caught_up: bool, launches: bool, decision: Decision) -> None:
    made = pacing().decide(0.0, idle=idle, plans=plans, caught_up=caught_up, launches=launches)
    assert made is decision


def test_an_idle_worker_waits_for_launches_only_so_long() -> None:
    made = pacing()
    for now in (5.0, 5.0 + GATHER_SECONDS * 0.9):
        assert (
            made.decide(now, idle=True, plans=0, caught_up=True, launches=True) is Decision.GATHER
        )
    late = 5.0 + GATHER_SECONDS * 1.1
    assert made.decide(late, idle=True, plans=0, caught_up=True, launches=True) is Decision.SEND
    # The next burst is waited for as long again.
    made.sent()
    assert made.decide(late, idle=True, plans=0, caught_up=True, launches=True) is Decision.GATHER


@pytest.mark.parametrize("plan_seconds", [0.004, 3.0])
def test_steps_of_others_wait_for_launches_no_longer_than_a_step(plan_seconds: float) -> None:
    def decide(now: float) -> Decision:
        return made.decide(now, idle=True, plans=0, caught_up=True, launches=True, goes_on=True)

    made = pacing(plan_seconds)
    most = min(plan_seconds, GATHER_SECONDS)
    assert decide(5.0) is decide(5.0 + most * 0.9) is Decision.GATHER
    assert decide(5.0 + most * 1.1) is Decision.SEND


@pytest.mark.parametrize("plan_seconds", [0.004, 0.05, 3.0])
def test_an_idle_worker_waits_for_turns_no_longer_than_a_plan_takes(plan_seconds: float) -> None:
    made = pacing(plan_seconds)
    most = min(plan_seconds, TURNS_SECONDS)
    for now in (1.0, 1.0 + most * 0.9):
        assert made.decide(now, idle=True, plans=0, caught_up=False) is Decision.AWAIT_TURNS
    assert made.decide(1.0 + most * 1.1, idle=True, plans=0, caught_up=False) is Decision.SEND


def test_when_guests_have_caught_up_the_next_wait_counts_from_its_own_start() -> None:
    made = pacing(0.05)
    assert made.decide(1.0, idle=True, plans=0, caught_up=False) is Decision.AWAIT_TURNS
    assert made.decide(1.04, idle=True, plans=0, caught_up=True) is Decision.SEND
    assert made.decide(1.06, idle=True, plans=0, caught_up=False) is Decision.AWAIT_TURNS


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
        decision = made.decide(now, idle=True, plans=0, caught_up=caught_up, launches=launches)
        assert decision in (Decision.SEND, Decision.GATHER, Decision.AWAIT_TURNS)
        if decision is Decision.SEND:
            made.sent()
            since = now
        assert now - since <= GATHER_SECONDS + TURNS_SECONDS + 0.021


def test_nothing_follows_a_plan_that_takes_long_yet() -> None:
    for left, decision in (
        (FOLLOW_SECONDS * 1.1, Decision.LATER),
        (FOLLOW_SECONDS, Decision.FOLLOW),
        (0.0, Decision.FOLLOW),
    ):
        assert pacing().decide(0.0, idle=False, plans=1, caught_up=True, left=left) is decision
        alone = pacing().decide(0.0, idle=True, plans=0, caught_up=True, left=left)
        assert alone is Decision.SEND  # a worker without a plan never waits for an end


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
