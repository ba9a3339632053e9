"""Discards the pages of waiting programs and recomputes them: InferCept's *ImprovedDiscard*."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused


def decide(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """Discards what can be recomputed."""
    return [Choice.DISCARD if one.can_discard else Choice.PRESERVE for one in paused]
