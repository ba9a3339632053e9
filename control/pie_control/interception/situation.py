"""The input of the interception policies for one model, and their choices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import structlog

from pie_control.interception.waste import Choice, Load, Paused

if TYPE_CHECKING:
    from pie_control.instances.futures import Outside
    from pie_control.instances.instance import Instance
    from pie_control.interception.costs import Costs
    from pie_control.interception.history import Durations
    from pie_control.interception.policy import Policy
    from pie_control.interception.served_model import ServedModel

log = structlog.get_logger("pie.interception")


class Situation:
    """The state of one model as the policies see it; the evictor and the adviser share it."""

    def __init__(
        self,
        model: ServedModel,
        policy: Policy,
        costs: Costs | None,
        durations: Durations,
        clock: Callable[[], float],
    ) -> None:
        """Looks at nothing yet.

        Args:
            model: whose pages these are.
            policy: the operator's.
            costs: what the worker has measured. Without them no policy is asked.
            durations: of earlier waits, by kind.
            clock: trio's, in seconds.
        """
        self._model = model
        self.policy = policy
        self.costs = costs
        self._durations = durations
        self._clock = clock

    def now(self) -> float:
        """The time by trio's clock, in seconds."""
        return self._clock()

    def load(self, swap_pages: int, without: Instance | None = None) -> Load:
        """What runs now.

        Args:
            swap_pages: pages that may be swapped out in this step.
            without: an instance that does not count.
        """
        spaces, page_size = self._model.spaces, self._model.pages.page_size
        running = [i for i in spaces if i.queued_commands and i is not without]
        tokens = sum(spaces[i].pages.resident for i in running) * page_size
        room = self._model.host_pages.free * page_size
        return Load(len(running), tokens, swap_pages * page_size, room)

    def remaining(self, user: str, kind: str, elapsed: float) -> float:
        """Seconds that a wait of this kind will last from now on, by the user's earlier waits."""
        return self._durations.remaining(user, kind, elapsed)

    def facts(self, instance: Instance) -> Paused:
        """A paused instance whose pages the server may swap. It cannot recompute them."""
        tokens = self._model.spaces[instance].pages.resident * self._model.pages.page_size
        return Paused(instance.number, tokens, self._soonest(instance), can_discard=False)

    def worth(self, instance: Instance) -> int:
        """The highest priority that an instance has given to one of its pages."""
        _, pages = self._model.spaces[instance].pages.all_resident()
        worth = self._model.pages.retention.of(pages, self._clock())
        return int(worth.max()) if len(worth) else 0

    def choose(self, paused: Sequence[Paused], swap_pages: int) -> list[Choice]:
        """The operator's policy for paused instances; `PRESERVE` for all if it cannot be asked."""
        if self.costs is None or not paused:
            return [Choice.PRESERVE] * len(paused)
        try:
            choices = self.policy(paused, self.load(swap_pages), self.costs)
            if len(choices) != len(paused):
                raise ValueError(f"{len(choices)} choices for {len(paused)} paused instances")
        except Exception:  # an operator's own policy: the server goes on without it
            log.exception("an interception policy failed")
            return [Choice.PRESERVE] * len(paused)
        return choices

    def _soonest(self, instance: Instance) -> float:
        """Seconds until the first of the futures that an instance waits for, as far as is known."""
        now = self._clock()
        found = (instance.futures.find(handle) for handle in instance.turn.awaited or ())
        waits = [future.outside for future in found if future is not None and future.outside]
        return min((self._left(instance, wait, now) for wait in waits), default=0.0)

    def _left(self, instance: Instance, wait: Outside, now: float) -> float:
        if wait.due is not None:
            return max(0.0, wait.due - now)
        return self.remaining(instance.user, wait.kind, now - wait.since)
