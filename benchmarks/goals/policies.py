"""The scheduler's policy but for the order of one user's programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pie_control.scheduler.adaptive import Adaptive


class Turns(Adaptive):
    """Equal turns: who has waited longest goes first."""

    def order(self, owners: Sequence[Any], plan: int) -> Sequence[int]:
        """As they have waited."""
        return range(len(owners))


class FirstCome(Adaptive):
    """First come, first served, as vLLM has requests: here texts between two calls."""

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._come: dict[tuple[str, int], int] = {}

    def order(self, owners: Sequence[Any], plan: int) -> Sequence[int]:
        """As they were seen first."""
        keys = [(each.id, len(each.aim.phases)) for each in owners]
        come = [self._come.setdefault(key, len(self._come)) for key in keys]
        return sorted(range(len(owners)), key=come.__getitem__)


ORDERS = {
    "first come": f"{__name__}:{FirstCome.__name__}",
    "equal turns": f"{__name__}:{Turns.__name__}",
    "goals": "adaptive",
}
