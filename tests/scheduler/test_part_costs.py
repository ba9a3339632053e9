"""What parts of prompts are learned to cost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.scheduler.adaptive import LONGER, PartCosts

TERMS = st.tuples(st.floats(0, 2e-3), st.floats(1e-6, 1e-3), st.floats(0, 2e-7), st.floats(0, 1e-6))


@given(TERMS, st.floats(0.01, 0.1))
def test_the_parts_of_a_prompt_take_the_time_that_they_are_given(
    terms: tuple[float, float, float, float], aim: float
) -> None:
    batch, each, pair, token = terms
    costs, context, count = PartCosts(), 0, 8
    for part in range(60):
        seconds = batch + each * count + pair * count * context + token * context
        if part > 20 and count > 1:
            smallest = batch + each + pair * context + token * context
            assert seconds < max(1.15 * aim, 1.5 * smallest)
        costs.took([(count, context)], seconds)
        context += count
        count = max(1, min(2048, costs.fitting(aim, context)))


@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(1, 2048), st.integers(0, 1 << 20)), min_size=1),
            st.floats(0, 1e3),
        ),
        min_size=1,
        max_size=20,
    ),
    st.floats(-1, 1e3),
    st.integers(0, 1 << 20),
)
def test_whatever_batches_took_some_inputs_fit(
    batches: list[tuple[list[tuple[int, int]], float]], seconds: float, context: int
) -> None:
    costs = PartCosts()
    for parts, took in batches:
        costs.took(parts, took)
        fitting = costs.fitting(seconds, context)
        assert 0 <= fitting <= LONGER * 2048 * 10_000
        assert costs.of(fitting, context) >= 0


def test_a_part_is_at_most_twice_as_long_as_any_before() -> None:
    costs = PartCosts()
    assert not costs
    assert costs.of(100, 0) == 0.0
    costs.took([(8, 0)], 1e-6)
    assert costs.fitting(1.0, 0) == LONGER * 8
    costs.took([(16, 8)], 2e-6)
    assert costs.fitting(1.0, 24) == LONGER * 16


def test_the_newest_batches_count_most() -> None:
    costs = PartCosts()
    for factor in (1, 3):
        for part in range(100):
            costs.took([(100 + part % 3, 1000)], factor * (1e-3 + 1e-5 * (100 + part % 3)))
        assert costs.of(100, 1000) == pytest.approx(factor * 2e-3, rel=0.02)


def test_a_context_that_costs_makes_parts_shorter() -> None:
    costs = PartCosts()
    for context in range(0, 4000, 200):
        costs.took([(200, context)], 200 * (1e-5 + 1e-8 * context))
    assert costs.fitting(4e-3, 0) == pytest.approx(400, rel=0.05)
    assert costs.fitting(4e-3, 4000) == pytest.approx(80, rel=0.1)
    assert costs.fitting(0.0, 4000) == 0
