"""The models of one worker: they take turns with their plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from pie_control.scheduler.adaptive import Adaptive
from pie_control.scheduler.fair_share import ActiveUsers
from pie_control.scheduler.scheduler import Scheduler
from pie_py.wire.plan import Cut, Plan, PlanResult


class PageMover(Protocol):
    """The evictor of a model: it moves pages of instances that wait, so that others have room."""

    @property
    def waits(self) -> bool:
        """True if an instance waits for pages."""

    def after_turn(self) -> None:
        """Guests have run: makes room, and brings back what may come back."""

    def settle(self) -> None:
        """Gives pages that have become free to who waits for them."""


class ServedModel(Protocol):
    """A model as plans need it."""

    @property
    def scheduler(self) -> Scheduler:
        """Forms its plans."""

    @property
    def evictor(self) -> PageMover | None:
        """Moves its pages; None if they stay."""


def share_worker(schedulers: Sequence[Scheduler]) -> None:
    """Has the adaptive policies of one worker's models count what users have had together."""

    def others_step(scheduler: Scheduler) -> bool:
        return any(other.steps_in_flight for other in schedulers if other is not scheduler)

    active = ActiveUsers()
    policies = [(s, s.policy) for s in schedulers if isinstance(s.policy, Adaptive)]
    for scheduler, policy in policies:
        policy.share(active, policies[0][1].shares, partial(others_step, scheduler))


class ModelTurns:
    """The models by name, and whose plan is next."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        steps_of: Callable[[str], int],
        wake_in: Callable[[float], None],
    ) -> None:
        """Takes the models that are served at present, how many steps a model's plan may have, and
        what asks for a plan again after some seconds.
        """
        self._models = models
        self._steps_of = steps_of
        self._wake_in = wake_in
        self._next = 0  # whose turn it is

    @property
    def steps_in_flight(self) -> int:
        """Steps at the worker that are not answered."""
        return sum([model.scheduler.steps_in_flight for model in self._models.values()])

    @property
    def go_on(self) -> bool:
        """True if a next step is there of what the last plans were of."""
        return any(model.scheduler.goes_on for model in self._models.values())

    def others_wait(self) -> bool:
        """True if something waits for more than the steps of runs that are at the worker."""
        for model in self._models.values():
            scheduler = model.scheduler
            if scheduler.holds:
                continue
            if scheduler.waits or scheduler.has_idle_steps:
                return True
            if not (scheduler.steps_in_flight or scheduler.is_idle):
                return True
        return False

    def next_plan(self, now: float, *, behind: bool) -> Plan | None:
        """The next plan of the model whose turn it is, or else of another one; of those that may
        send one `behind` the plan at the worker, if there is one.
        """
        names = list(self._models)
        schedulers = [self._models[name].scheduler for name in names]
        if len(schedulers) > 1:
            for scheduler in schedulers:  # guesses of one model's runs may be another one's
                scheduler.look_at_changes()
        for i in range(len(schedulers)):
            place = (self._next + i) % len(schedulers)
            scheduler = schedulers[place]
            if scheduler.holds or (behind and not scheduler.may_follow()):
                continue
            if (wait := scheduler.policy.wait(now, scheduler.ready)) > 0:
                self._wake_in(wait)
                continue
            # Another model that has something to send waits for a step, not for a plan of several.
            alone = len(schedulers) == 1 or all(s is scheduler or s.is_idle for s in schedulers)
            plan = scheduler.next_plan(self._steps_of(names[place]) if alone else 1)
            if plan is not None:
                self._next = (place + 1) % len(schedulers)
                return plan
        return None

    def cuts(self) -> Iterator[Cut]:
        """Orders that have the worker leave out what it has not begun of runs' steps."""
        for model in self._models.values():
            if (cut := model.scheduler.cut()) is not None:
                yield cut

    def complete(self, result: PlanResult) -> int:
        """Hands a result to its model; returns how many steps are done by it."""
        model = self._models.get(result.model)
        return 0 if model is None else model.scheduler.complete(result)

    def make_room(self) -> None:
        """Has pages moved before plans are formed."""
        for model in self._models.values():
            if model.evictor is not None:
                model.evictor.after_turn()

    def settle(self) -> None:
        """Looks at the pages again: forming a plan may have had a run wait for one, and commands
        have been sent, so pages may have become free.
        """
        for model in self._models.values():
            if model.evictor is not None and model.evictor.waits:
                model.evictor.settle()
