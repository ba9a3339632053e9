"""How many pages may move in one step so that the transfer hides behind the step's computation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pie_control.interception.costs import Costs
    from pie_control.interception.served_model import ServedModel


class Budget:
    """Pages that may still be moved in one direction in this step, by any part of the server."""

    def __init__(
        self, service: ServedModel, costs: Costs | None, share: float, *, inward: bool = False
    ) -> None:
        """Takes the costs, the share of a step's time that transfers may take, and the way."""
        self._service = service
        self._costs = costs
        self._inward = inward
        self._share = share
        self._plan = -1
        self._left = 0

    @property
    def left(self) -> int:
        """Pages; 0 if the costs are unknown."""
        if self._costs is None:
            return 0
        plan = self._service.scheduler.plans_sent
        if plan != self._plan:
            self._plan = plan
            step = self._costs.step_time(max(1, self._service.running))
            transfer = self._costs.swap_in if self._inward else self._costs.swap_out
            self._left = 0 if transfer is None else transfer.pages_within(self._share * step)
            if self._inward:  # instances must come back, however slow that is
                self._left = max(1, self._left)
        return self._left

    def spend(self, pages: int) -> None:
        """Counts pages that are moved."""
        self._left = max(0, self._left - pages)

    def step_seconds(self) -> float:
        """How long a step takes at present, about."""
        return 0.0 if self._costs is None else self._costs.step_time(max(1, self._service.running))
