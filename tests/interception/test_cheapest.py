"""What AsyncLM's trap handler decides, over context lengths and waits (the paper's figure 7)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pie_control.interception.costs import Costs, Transfer
from pie_control.interception.policy import POLICIES
from pie_control.interception.waste import Choice, Load, Paused

WAY = Transfer(seconds=0.001, pages_per_second=1e8 / 16_000)
COSTS = Costs(16, 0.002, 1e-6, 1e-7, 256, ((1, 0.002),), WAY, WAY)
LOAD = Load(sequences=4, running_tokens=1000, swap_budget=0, host_room=1 << 20)


def choice(tokens: int, seconds: float, costs: Costs = COSTS, load: Load = LOAD) -> Choice:
    (found,) = POLICIES["cheapest"]([Paused(1, tokens, seconds)], load, costs)
    return found


@pytest.mark.parametrize(
    ("tokens", "seconds", "expected"),
    [
        (100, 0.001, Choice.PRESERVE),  # the wait is over before anything is moved
        (100, 1.0, Choice.DISCARD),  # few tokens are quickly computed
        (2000, 1.0, Choice.SWAP),  # many are sooner moved
        (2000, 0.01, Choice.PRESERVE),
    ],
)
def test_the_choice(tokens: int, seconds: float, expected: Choice) -> None:
    assert choice(tokens, seconds) is expected


def test_what_is_not_possible_is_not_chosen() -> None:
    no_host_pool = replace(COSTS, swap_out=None, swap_in=None)
    assert choice(2000, 10.0, no_host_pool) is Choice.DISCARD
    assert choice(2000, 10.0, load=replace(LOAD, host_room=1999)) is Choice.DISCARD
    unknown_tokens = Paused(1, 2000, 10.0, can_discard=False)
    assert POLICIES["cheapest"]([unknown_tokens], LOAD, no_host_pool) == [Choice.PRESERVE]
    assert POLICIES["cheapest"]([unknown_tokens], LOAD, COSTS) == [Choice.SWAP]


@given(st.integers(1, 100_000), st.floats(0, 100))
def test_nothing_is_moved_that_would_come_back_too_late(tokens: int, seconds: float) -> None:
    took = {
        Choice.SWAP: COSTS.swap_time(tokens),
        Choice.DISCARD: COSTS.forward_time(tokens),
        Choice.PRESERVE: 0.0,
    }
    chosen = choice(tokens, seconds)
    assert took[chosen] <= seconds
    if chosen is not Choice.PRESERVE:
        assert took[chosen] <= min(took[Choice.SWAP], took[Choice.DISCARD])
