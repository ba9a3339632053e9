"""The policies: least waste, within the budget, and what they are told."""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given
from support.machine_costs import COSTS, FACTS

from pie_control.interception import waste
from pie_control.interception.costs import Costs, Transfer
from pie_control.interception.policy import POLICIES, load_policy
from pie_control.interception.policy_input import MOST_KINDS, NEWEST, Durations
from pie_control.interception.waste import Choice, Load, Paused
from pie_py.config.plugins import UnknownPolicy

times = st.floats(0, 1e3)
transfers = st.builds(Transfer, st.floats(0, 1e-2), st.floats(1, 1e6))
costs = st.builds(
    Costs,
    st.sampled_from([8, 16, 32]),
    st.floats(0, 0.1),
    st.floats(1e-7, 1e-2),
    st.floats(0, 1e-7),
    st.integers(1, 4096),
    st.just(((1, 0.01), (64, 0.05))),
    st.none() | transfers,
    st.none() | transfers,
)
waiting = st.builds(Paused, st.integers(1, 99), st.integers(1, 1 << 15), times, st.booleans())
loads = st.builds(
    Load,
    st.integers(0, 64),
    st.integers(0, 1 << 16),
    st.integers(0, 1 << 14),
    st.integers(0, 1 << 16),
)


def waste_of(choice: Choice, one: Paused, load: Load, model: Costs) -> float:
    if choice is Choice.PRESERVE:
        return waste.preserve(one)
    if choice is Choice.DISCARD:
        return waste.discard(one, load, model)
    return waste.swap(one, model)


@given(st.lists(waiting, max_size=8), loads, costs)
def test_min_waste_takes_nothing_that_wastes_more(
    paused: list[Paused], load: Load, model: Costs
) -> None:
    choices = POLICIES["min-waste"](paused, load, model)
    assert len(choices) == len(paused)
    for one, choice in zip(paused, choices, strict=True):
        chosen = waste_of(choice, one, load, model)
        assert chosen <= waste.preserve(one)
        if model.swap_time(one.tokens) > model.forward_time(one.tokens):  # else a swap may pay soon
            assert chosen <= waste.discard(one, load, model)
        assert not math.isinf(chosen)
        assert choice is not Choice.DISCARD or one.can_discard


@given(st.lists(waiting, max_size=8), loads, costs)
def test_min_waste_keeps_to_the_budget(paused: list[Paused], load: Load, model: Costs) -> None:
    choices = POLICIES["min-waste"](paused, load, model)
    swapped = [one for one, c in zip(paused, choices, strict=True) if c is Choice.SWAP]
    most = min(load.swap_budget, load.host_room)
    # All but the last one fit; the last one goes in parts. Where no step hides any, those go all
    # the same that would waste more than steps that wait for them.
    assert (
        not swapped
        or not load.swap_budget
        or sum(one.tokens for one in swapped) - max(o.tokens for o in swapped) < most
    )
    if load.host_room == 0 or model.swap_out is None or model.swap_in is None:
        assert not swapped


@given(st.lists(waiting, min_size=2, max_size=8), loads)
def test_min_waste_swaps_those_first_that_would_waste_most(
    paused: list[Paused], load: Load
) -> None:
    load = replace(load, host_room=1 << 20)  # for all of them
    choices = POLICIES["min-waste"](paused, load, COSTS)

    def least(one: Paused) -> float:
        return min(waste.preserve(one), waste.discard(one, load, COSTS))

    for one, choice in zip(paused, choices, strict=True):
        if choice is Choice.SWAP or POLICIES["min-waste"]([one], load, COSTS) != [Choice.SWAP]:
            continue
        for other, chosen in zip(paused, choices, strict=True):
            if chosen is Choice.SWAP:
                assert least(other) >= least(one)


@given(st.lists(waiting, max_size=8), loads, costs)
def test_the_simple_policies(paused: list[Paused], load: Load, model: Costs) -> None:
    assert set(POLICIES["preserve"](paused, load, model)) <= {Choice.PRESERVE}
    for one, choice in zip(paused, POLICIES["discard"](paused, load, model), strict=True):
        assert choice is (Choice.DISCARD if one.can_discard else Choice.PRESERVE)
    choices = POLICIES["swap"](paused, load, model)
    if load.host_room and model.swap_out is not None and paused:
        oldest = min(range(len(paused)), key=lambda i: paused[i].arrival)
        assert choices[oldest] is Choice.SWAP


@given(waiting, loads)
def test_wastes_grow_with_what_is_wasted(one: Paused, load: Load) -> None:
    longer = replace(one, remaining=one.remaining + 1)
    larger = replace(one, tokens=one.tokens + 100)
    busier = replace(load, running_tokens=load.running_tokens + 1000)
    assert waste.preserve(longer) > waste.preserve(one)
    assert waste.discard(longer, load, COSTS) == waste.discard(one, load, COSTS)
    assert waste.discard(larger, load, COSTS) >= waste.discard(one, load, COSTS)
    assert waste.discard(one, busier, COSTS) >= waste.discard(one, load, COSTS)
    assert waste.swap(larger, COSTS) > waste.swap(one, COSTS)
    assert waste.stalled_swap(one, load, COSTS) >= waste.swap(one, COSTS)


def test_a_short_call_is_preserved_and_a_long_one_is_not() -> None:
    load = Load(sequences=8, running_tokens=8000, swap_budget=0, host_room=0)
    decide = POLICIES["min-waste"]
    short, long = Paused(1, 1000, 1e-3), Paused(2, 1000, 30.0)
    assert decide([short, long], load, COSTS) == [Choice.PRESERVE, Choice.DISCARD]
    load = replace(load, swap_budget=2000, host_room=1 << 20)
    assert decide([short, long], load, COSTS)[1] is Choice.SWAP


@given(
    st.lists(waiting, max_size=8), loads, costs, st.integers(-1000, 1 << 16), st.integers(0, 999)
)
def test_no_more_is_given_up_than_others_lack(
    paused: list[Paused], load: Load, model: Costs, lacking: int, reserve: int
) -> None:
    load = replace(load, lacking=lacking, reserve=reserve)
    chosen = list(zip(paused, POLICIES["min-waste"](paused, load, model), strict=True))
    discarded = [one.tokens for one, choice in chosen if choice is Choice.DISCARD]
    swapped = [one.tokens for one, choice in chosen if choice is Choice.SWAP]
    assert not discarded or sum(discarded) - max(discarded) < lacking
    assert not swapped or sum(swapped) - max(swapped) < lacking + reserve
    if lacking + reserve <= 0:
        assert not discarded
        assert not swapped


def test_a_short_context_is_not_discarded_for_less_than_its_recomputation_takes() -> None:
    alone = Load(sequences=0, running_tokens=0, swap_budget=0, host_room=0)
    for tokens in (16, 64):
        seconds = COSTS.step_time(0, tokens)
        (short,) = POLICIES["min-waste"]([Paused(1, tokens, seconds / 10)], alone, COSTS)
        (long,) = POLICIES["min-waste"]([Paused(1, tokens, seconds * 10)], alone, COSTS)
        assert (short, long) == (Choice.PRESERVE, Choice.DISCARD)


def test_nothing_is_swapped_that_would_be_back_too_late() -> None:
    """A swap that takes longer than the wait delays its program, and frees memory for nobody."""
    load = Load(sequences=8, running_tokens=8000, swap_budget=1 << 20, host_room=1 << 20)
    away = COSTS.swap_time(3000) + COSTS.step_time(8)
    decide = POLICIES["min-waste"]
    for wait, choice in ((0.8, Choice.PRESERVE), (1.2, Choice.PRESERVE), (3, Choice.SWAP)):
        assert decide([Paused(1, 3000, wait * away, False)], load, COSTS) == [choice]


def test_what_only_has_to_wait_for_a_later_step_is_not_given_up() -> None:
    decide = POLICIES["min-waste"]
    load = Load(8, 8000, swap_budget=900, host_room=1 << 20, swap_rate=100_000.0)
    first, second = Paused(1, 1000, 30.0), Paused(2, 1000, 20.0)
    assert decide([first, second], load, COSTS) == [Choice.SWAP, Choice.PRESERVE]
    assert decide([second], replace(load, swap_budget=0), COSTS) == [Choice.PRESERVE]
    unhoped = replace(load, swap_rate=10.0)  # steps are so short that they would take a minute
    assert decide([first, second], unhoped, COSTS)[1] is Choice.DISCARD


def test_where_no_step_hides_a_page_the_steps_wait_if_that_wastes_least() -> None:
    decide = POLICIES["min-waste"]
    load = Load(8, 8000, swap_budget=0, host_room=1 << 20)
    assert decide([Paused(1, 1000, 30.0)], load, COSTS) == [Choice.SWAP]
    assert decide([Paused(1, 1000, 30.0)], replace(load, running_tokens=1 << 30), COSTS) == [
        Choice.PRESERVE
    ]


def test_what_finds_no_room_as_a_whole_is_not_swapped_in_part() -> None:
    decide = POLICIES["min-waste"]
    load = Load(sequences=8, running_tokens=8000, swap_budget=2000, host_room=999)
    long = Paused(1, 1000, 30.0)
    assert decide([long], load, COSTS) == [Choice.DISCARD]
    assert decide([replace(long, can_discard=False)], load, COSTS) == [Choice.SWAP]
    assert decide([replace(long, tokens=999)], load, COSTS) == [Choice.SWAP]


def test_costs_from_what_was_measured() -> None:
    assert COSTS.saturation == 256  # 12 800 tokens per second, of 14 600 at best
    assert COSTS.chunk(56) == 200
    assert COSTS.chunk(9999) == 1
    assert COSTS.step_time(0) == 0
    assert COSTS.step_time(1) == 0.01
    assert COSTS.step_time(20) == pytest.approx(0.018)
    assert COSTS.step_time(64) == pytest.approx(0.04)  # beyond: as the last piece
    assert COSTS.swap_time(16) == pytest.approx(2e-4 + 1.5 * (1 << 20) / 1e10)
    assert COSTS.swap_out is not None
    pages = COSTS.swap_out.pages_within(0.005)
    assert COSTS.swap_out.time(pages) <= 0.005 < COSTS.swap_out.time(pages + 1)
    without = Costs.measured({**FACTS, "swap_out": None, "swap_in": None})
    assert math.isinf(without.swap_time(1))


@given(st.lists(st.floats(0, 100), max_size=NEWEST), st.floats(0, 100))
def test_a_wait_is_expected_to_last_as_earlier_ones_did(
    seconds: list[float], elapsed: float
) -> None:
    durations = Durations()
    for each in seconds:
        durations.add("ann", "tool", each)
    longer = [each for each in seconds if each > elapsed]
    found, half = durations.remaining("ann", "tool", elapsed)
    if longer:
        assert found == pytest.approx(sum(longer) / len(longer) - elapsed, abs=1e-6)
        assert half == sorted(longer)[len(longer) // 2] - elapsed
    else:
        assert found == half == elapsed
    assert durations.remaining("ben", "tool", elapsed) == (elapsed, elapsed)


def test_history_is_bounded() -> None:
    durations = Durations()
    for number in range(MOST_KINDS + 10):
        durations.add("ann", str(number), 1.0)
    assert len(durations) == MOST_KINDS
    for _ in range(NEWEST):
        durations.add("ann", "x", 1.0)
    for _ in range(NEWEST):
        durations.add("ann", "x", 3.0)
    assert durations.remaining("ann", "x", 0.0) == (3.0, 3.0)


def test_most_calls_of_a_tool_may_be_short_though_their_mean_is_long() -> None:
    durations = Durations()
    for number in range(50):
        durations.add("ann", "tool", 60.0 if number % 5 == 0 else 0.05)
    load, decide = Load(8, 8000, 1 << 20, 1 << 20), POLICIES["min-waste"]
    for elapsed, choice in ((0.0, Choice.PRESERVE), (0.06, Choice.SWAP)):
        remaining, half = durations.remaining("ann", "tool", elapsed)
        assert remaining > 10
        assert decide([Paused(1, 3000, remaining, half=half)], load, COSTS) == [choice]


def keep_the_young(paused: list[Paused], load: Load, costs: Costs) -> list[Choice]:
    """An operator's own policy."""
    return [Choice.SWAP if one.arrival < 3 else Choice.PRESERVE for one in paused]


def test_policies_by_name_and_by_path() -> None:
    assert load_policy("swap") is POLICIES["swap"]
    assert load_policy(f"{__name__}:keep_the_young") is keep_the_young
    for wrong in ("none", "no.such.module:x", f"{__name__}:nothing", "math:pi"):
        with pytest.raises(UnknownPolicy, match=wrong.split(":")[0]):
            load_policy(wrong)
