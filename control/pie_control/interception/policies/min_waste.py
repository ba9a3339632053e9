"""InferCept's own policy: what wastes the least memory, for each who waits."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.interception import waste
from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused


def decide(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """Swaps those who would waste most, within the step's budget; of the others, the lesser waste."""
    wastes = [(waste.preserve(one), waste.discard(one, load, costs)) for one in paused]
    choices = [
        Choice.PRESERVE if preserve <= discard else Choice.DISCARD for preserve, discard in wastes
    ]
    left = min(load.swap_budget, load.host_room)
    for at in sorted(range(len(paused)), key=lambda i: (-min(wastes[i]), paused[i].arrival)):
        one = paused[at]
        if left > 0 and waste.swap(one, costs) < min(wastes[at]):
            left -= one.tokens  # what the last one has beyond the budget goes in the next step
            choices[at] = Choice.SWAP
    return choices
