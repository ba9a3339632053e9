"""The policies of interception, and how a setting becomes one.

A policy is a function of plain values, without state and without I/O. It is asked once per step and
returns a choice for each waiting instance. The mechanisms carry out what they can: they swap as
much as the step's budget and host memory have room for, and the rest in later steps. The server
never discards the pages of an instance that has not asked for it: it could not recompute them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pie_control.interception import waste
from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused
from pie_py.config.plugins import named_policy

Policy: TypeAlias = Callable[[Sequence[Paused], Load, Costs], list[Choice]]

# A wait is worth a swap if it lasts so many times as long as the ways out and back, with the step
# after which they end: what is left between must outweigh what the program loses by coming late.
WORTH = 2
SOONEST_SECONDS = 0.02  # after which a waiting program asks again


def preserve(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """Preserves all pages where they are."""
    return [Choice.PRESERVE] * len(paused)


def discard(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """InferCept's *ImprovedDiscard*: discards what can be recomputed."""
    return [Choice.DISCARD if one.can_discard else Choice.PRESERVE for one in paused]


def swap(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """InferCept's *Swap*, beyond any budget: the oldest first, as long as the host has room."""
    choices = [Choice.PRESERVE] * len(paused)
    room = load.host_room if costs.swap_out is not None else 0
    for at in sorted(range(len(paused)), key=lambda i: paused[i].arrival):
        if room > 0:
            room -= paused[at].tokens
            choices[at] = Choice.SWAP
    return choices


def min_waste(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """InferCept's own, as far as memory is needed: unused memory is no waste while no instance
    waits for it.

    The contexts with the most waste are swapped, within the budget, or stay until a later step can
    take them, until the reserve is free. None is swapped that would be back too late. What waiting
    instances lack beyond that is discarded where that wastes less than to preserve it, the contexts
    that save the most for each token first.
    """
    wastes = [(waste.preserve(one), waste.discard(one, load, costs)) for one in paused]
    saves = {
        at: (held - recomputed) / paused[at].tokens
        for at, (held, recomputed) in enumerate(wastes)
        if held > recomputed
    }
    choices = [Choice.PRESERVE] * len(paused)
    lacking = load.lacking
    room, line = load.host_room, 0  # tokens that go now or wait to
    step = costs.step_time(max(1, load.sequences))
    hides = load.swap_budget > 0 or load.swap_rate > 0
    for at in sorted(range(len(paused)), key=lambda i: (-min(wastes[i]), paused[i].arrival)):
        if lacking + load.reserve <= 0:
            break
        one = paused[at]
        # What could be discarded must find room as a whole: of one that has gone in part the rest
        # could be neither moved nor given up.
        fits = room >= one.tokens if one.can_discard else room > 0
        late = _seconds_in_line(line, one.tokens, load) if hides else 0.0
        away = step + costs.swap_time(one.tokens)
        if not fits:
            continue
        if late + WORTH * away >= min(one.remaining, one.half):
            # Nor is it given up, if that takes longer still: the next look may find a longer wait.
            if costs.swap_time(one.tokens) <= costs.forward_time(one.tokens):
                saves.pop(at, None)
            continue
        moving = waste.swap(one, costs) if hides else waste.stalled_swap(one, load, costs)
        if late * one.tokens + moving < min(wastes[at]):
            choices[at] = Choice.PRESERVE if hides and line >= load.swap_budget else Choice.SWAP
            saves.pop(at, None)
            line += one.tokens
            room -= one.tokens
            lacking -= one.tokens
    for at in sorted(saves, key=lambda i: (-saves[i], paused[i].arrival)):
        if lacking <= 0:
            break
        choices[at] = Choice.DISCARD
        lacking -= paused[at].tokens
    return choices


def _seconds_in_line(line: int, tokens: int, load: Load) -> float:
    """Seconds until tokens behind a line of others are out, within the budgets of steps to come."""
    beyond = line + tokens - load.swap_budget
    if beyond <= 0:
        return 0.0
    if load.swap_rate:
        return beyond / load.swap_rate
    # Nothing is known of later steps: what the last one has beyond this one's budget goes then.
    return 0.0 if line < load.swap_budget else math.inf


def cheapest(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """AsyncLM's trap handler (section 5.4): the faster choice, if it is faster than the wait.

    Preserves where swapping and recomputing both outlast the wait.
    """
    return [_choose(one, load, costs) for one in paused]


def _choose(one: Paused, load: Load, costs: Costs) -> Choice:
    swapping = costs.swap_time(one.tokens) if one.tokens <= load.host_room else math.inf
    recomputing = costs.forward_time(one.tokens) if one.can_discard else math.inf
    if min(swapping, recomputing) > one.remaining:
        return Choice.PRESERVE
    return Choice.DISCARD if recomputing <= swapping else Choice.SWAP


POLICIES: dict[str, Policy] = {
    "preserve": preserve,
    "discard": discard,
    "swap": swap,
    "min-waste": min_waste,
    "cheapest": cheapest,
}


def load_policy(name: str) -> Policy:
    """The policy of a name, or of an import path `package.module:function`.

    Raises:
        UnknownPolicy: if there is none.
    """
    return named_policy(name, POLICIES, "interception")
