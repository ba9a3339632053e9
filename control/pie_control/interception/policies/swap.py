"""Swaps the pages of waiting programs to host memory, beyond any budget: InferCept's *Swap*."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused


def decide(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """Swap, the oldest first, as long as the host has room."""
    choices = [Choice.PRESERVE] * len(paused)
    room = load.host_room if costs.swap_out is not None else 0
    for at in sorted(range(len(paused)), key=lambda i: paused[i].arrival):
        if room > 0:
            room -= paused[at].tokens
            choices[at] = Choice.SWAP
    return choices
