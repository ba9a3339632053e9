"""AsyncLM's trap handler (section 5.4): what is soonest undone, if that is sooner than the wait is
over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused


def decide(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """Preserves where moving and recomputing both take longer than the wait; else the quicker of
    the two.
    """
    return [_choose(one, load, costs) for one in paused]


def _choose(one: Paused, load: Load, costs: Costs) -> Choice:
    swapping = costs.swap_time(one.tokens) if one.tokens <= load.host_room else math.inf
    recomputing = costs.forward_time(one.tokens) if one.can_discard else math.inf
    if min(swapping, recomputing) > one.remaining:
        return Choice.PRESERVE
    return Choice.DISCARD if recomputing <= swapping else Choice.SWAP
