"""AsyncLM's trap handler (section 5.4): the fastest choice, if it is faster than the wait."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused


def decide(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """Preserves where swapping and recomputing both outlast the wait; else takes the faster one."""
    return [_choose(one, load, costs) for one in paused]


def _choose(one: Paused, load: Load, costs: Costs) -> Choice:
    swapping = costs.swap_time(one.tokens) if one.tokens <= load.host_room else math.inf
    recomputing = costs.forward_time(one.tokens) if one.can_discard else math.inf
    if min(swapping, recomputing) > one.remaining:
        return Choice.PRESERVE
    return Choice.DISCARD if recomputing <= swapping else Choice.SWAP
