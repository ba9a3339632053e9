"""What device programs may take of a step, and which choices have to wait for the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.programs_read import text_of

from inferlet import device
from pie_py.device_programs.program import read_program
from pie_py.device_programs.step_cost import (
    FREE,
    OF_A_STEP,
    StepCost,
    affordable,
    fitting,
    step_cost,
    whole_cost,
)

PROGRAMS = st.builds(
    lambda program, row: StepCost(program, program * OF_A_STEP // 20, row),
    st.integers(1, 5),
    st.integers(1, OF_A_STEP * 2 // 3),
)


@given(st.lists(st.just(FREE) | PROGRAMS, min_size=1), st.integers(0, OF_A_STEP))
def test_what_fits_is_bounded_and_never_nothing(costs: list[StepCost], room: int) -> None:
    table = np.array(costs, np.int32).T
    fits = affordable(table, room)
    programs = [
        cost for cost, fit in zip(costs, fits.tolist(), strict=True) if fit and cost != FREE
    ]
    assert all(fit for cost, fit in zip(costs, fits.tolist(), strict=True) if cost == FREE)
    assert programs[:1] == [cost for cost in costs if cost != FREE][:1]
    if len(programs) > 1:
        once = {cost.program: cost.once for cost in reversed(programs)}
        assert sum(cost.row for cost in programs) + sum(once.values()) <= room
        assert whole_cost(np.array(programs, np.int32).T) <= room


def test_rows_of_one_program_cost_less_than_as_many_programs() -> None:
    def scaled(by: float) -> str:
        return text_of(device.program(lambda logits: device.draw(logits * by))())

    texts = [scaled(float(i)) for i in range(64)]
    costs = [step_cost(read_program(text), 2403) for text in texts]
    assert len({cost.program for cost in costs}) == 64
    alike, others = np.array([costs[0]] * 64).T, np.array(costs).T
    assert whole_cost(alike) < whole_cost(others) / 4
    assert affordable(alike).all()
    assert affordable(np.array([costs[0]] * 64 * 20).T).sum() > 300
    assert not affordable(np.array(costs * 3).T).all() or whole_cost(others) < OF_A_STEP


def test_32_rows_of_top_p_fit_into_a_step_of_a_large_vocabulary() -> None:
    def rule(logits: device.Tensor) -> device.Tensor:
        kept = device.nucleus(logits, 0.9)
        return device.draw(logits.where(kept, -1e30))

    cost = step_cost(read_program(text_of(device.program(rule)())), 150_000)
    assert affordable(np.array([cost] * 32).T).all()


def test_large_values_cost_what_it_takes_to_read_them() -> None:
    def rule(logits: device.Tensor, state: device.State) -> device.Tensor:
        state.changing = state.changing + state.table[:1024]
        return logits.argmax() + state.changing[0] * 0

    given = device.program(rule)(table=[1] * 100_000, changing=[0] * 1024)
    cost = step_cost(read_program(text_of(given)), 2403)
    # Those of 64 rows are 51 MB: 20 ms.
    assert 8 < affordable(np.array([cost] * 64).T).sum() < 64


def test_what_is_sorted_costs_more_than_what_is_looked_for() -> None:
    def cost(rule: Any) -> float:
        return read_program(text_of(device.program(rule)())).cost(50_000)

    few = cost(lambda logits: logits.top(8)[0])
    assert cost(lambda logits: logits.top(20_000)[0]) > few + 2_000_000
    wide = cost(lambda logits: logits.to_int().sort()[0])
    assert wide > 2 * cost(lambda logits: logits.sort().to_int()[0])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.just(FREE) | PROGRAMS), min_size=1))
def test_each_user_gets_as_much_as_another(choices: list[tuple[str, StepCost]]) -> None:
    users = [user for user, _ in choices]
    table = np.array([cost for _, cost in choices], np.int32).T
    fits = fitting(users, table, OF_A_STEP)
    assert fits[table[2] == 0].all()
    assert not fitting(users, table, 0)[table[2] > 0].any()
    assert whole_cost(table[:, fits]) <= OF_A_STEP or (table[2][fits] > 0).sum() == 1
    had = {user: int(table[2][fits & (np.array(users) == user)].sum()) for user in set(users)}
    for user in had:
        left = [
            cost.row
            for (own, cost), fit in zip(choices, fits, strict=True)
            if own == user and not fit
        ]
        if left:  # no other user has had more, but for one choice
            most = max(cost.row for _, cost in choices)
            assert max(had.values()) <= had[user] + most


def test_a_user_of_few_choices_is_not_behind_one_of_many() -> None:
    costs = np.array([StepCost(1, 1, OF_A_STEP // 8)] * 100).T
    fits = fitting(["many"] * 99 + ["few"], costs, OF_A_STEP)
    assert fits[99]
    assert fits[:6].all()
    assert fits.sum() == 7
