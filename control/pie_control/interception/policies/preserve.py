"""Preserves all pages where they are."""

from __future__ import annotations

from collections.abc import Sequence

from pie_control.interception.costs import Costs
from pie_control.interception.waste import Choice, Load, Paused


def decide(paused: Sequence[Paused], load: Load, costs: Costs) -> list[Choice]:
    """Preserve."""
    return [Choice.PRESERVE] * len(paused)
