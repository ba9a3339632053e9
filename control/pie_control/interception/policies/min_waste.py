"""InferCept's own policy: for each waiting instance the choice that wastes the least memory."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.interception import waste
from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused


def decide(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """Swaps the contexts with the most waste, within the budget; the rest take the lesser waste."""
    wastes = [(waste.preserve(one), waste.discard(one, load, costs)) for one in paused]
    choices = [
        Choice.PRESERVE if preserve <= discard else Choice.DISCARD for preserve, discard in wastes
    ]
    budget, room = load.swap_budget, load.host_room
    for at in sorted(range(len(paused)), key=lambda i: (-min(wastes[i]), paused[i].arrival)):
        one = paused[at]
        # What the last one has beyond the budget goes in the next step. What could be discarded
        # must find room as a whole: of one that has gone in part the rest could be neither moved
        # nor given up.
        fits = room >= one.tokens if one.can_discard else room > 0
        if budget > 0 and fits and waste.swap(one, costs) < min(wastes[at]):
            budget -= one.tokens
            room -= one.tokens
            choices[at] = Choice.SWAP
    return choices
