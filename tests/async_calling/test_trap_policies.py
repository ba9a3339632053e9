"""What AsyncLM's trap handler decides, over context lengths and waits (the paper's figure 7)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferlet.cml import Action, Order, Pause, Script, ScriptedCall, cheapest
from inferlet.cml.traps import recompute_seconds, swap_seconds

WAY = {"seconds": 0.001, "bytes_per_second": 1e8}
COSTS: dict[str, Any] = {
    "page_bytes": 16_000,
    "page_size": 16,
    "swap_out": WAY,
    "swap_in": WAY,
    "prefill": {"fit": [0.002, 1e-6, 1e-7]},
}


def pause(tokens: int, seconds: float | None, costs: dict[str, Any] = COSTS) -> Pause:
    return Pause(tokens, -(-tokens // 16), seconds, costs)


def test_costs_of_moving_and_recomputing() -> None:
    assert swap_seconds(pause(1600, 1)) == pytest.approx(2 * (0.001 + 1.6e6 / 1e8))
    assert recompute_seconds(pause(1000, 1)) == pytest.approx(0.002 + 1e-3 + 0.1)


@pytest.mark.parametrize(
    ("tokens", "seconds", "action"),
    [
        (100, 0.001, Action.PRESERVE),  # the wait is over before anything is moved
        (100, 1.0, Action.DISCARD),  # few tokens are quickly computed
        (2000, 1.0, Action.SWAP),  # many are sooner moved
        (2000, 0.01, Action.PRESERVE),
        (100, None, Action.DISCARD),
    ],
)
def test_the_choice(tokens: int, seconds: float | None, action: Action) -> None:
    assert cheapest(pause(tokens, seconds)) is action


def test_what_is_not_possible_is_not_chosen() -> None:
    no_host_pool = {**COSTS, "swap_out": None, "swap_in": None}
    assert cheapest(pause(2000, 10.0, no_host_pool)) is Action.DISCARD
    assert cheapest(pause(2000, 10.0, {})) is Action.PRESERVE


@given(st.integers(1, 100_000), st.floats(0, 100))
def test_nothing_is_moved_that_would_come_back_too_late(tokens: int, seconds: float) -> None:
    one = pause(tokens, seconds)
    moving, recomputing = swap_seconds(one), recompute_seconds(one)
    assert moving is not None
    assert recomputing is not None
    took = {Action.SWAP: moving, Action.DISCARD: recomputing, Action.PRESERVE: 0.0}
    assert took[cheapest(one)] <= seconds


@pytest.mark.parametrize(
    ("order", "first"), [(Order.LPT, "b"), (Order.GIVEN, "a"), (Order.RANDOM, None)]
)
def test_which_call_a_script_takes_first(order: Order, first: str | None) -> None:
    calls = [ScriptedCall("a", "f()", seconds=1), ScriptedCall("b", "f()", seconds=2)]
    taken = {Script(calls, order=order, seed=seed)._ready().identifier for seed in range(20)}
    assert taken == ({first} if first else {"a", "b"})


def test_scripts_that_are_wrong() -> None:
    with pytest.raises(ValueError, match="the same identifier"):
        Script([ScriptedCall("a", "f()"), ScriptedCall("a", "g()")])
    for found in ({}, {"calls": [1]}, {"calls": [{"id": "a", "call": "f()", "seconds": "x"}]}):
        with pytest.raises(ValueError, match=r"no script|could not convert"):
            Script.from_json(found)
