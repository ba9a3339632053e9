"""The next plan of a worker's models, which take turns with their plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from pie_control.scheduler.adaptive import Adaptive
from pie_control.scheduler.fair_share import ActiveUsers
from pie_control.scheduler.scheduler import Scheduler
from pie_control.timers import Timers
from pie_py.wire.plan import Plan


class PageMover(Protocol):
    """The evictor of a model: it moves pages of instances that wait, so that others have room."""

    @property
    def waiting(self) -> Mapping[Any, Any]: ...  # noqa: D102  by instance that waits for pages

    def after_turn(self) -> None:
        """Guests have run: makes room, and brings back what may come back."""

    def settle(self) -> None:
        """Gives pages that have become free to who waits for them."""


class ServedModel(Protocol):
    """A model as plans need it: the scheduler forms them, the evictor may move its pages."""

    @property
    def scheduler(self) -> Scheduler: ...  # noqa: D102

    @property
    def evictor(self) -> PageMover | None: ...  # noqa: D102


class NextPlan:
    """Takes the next plan of the model whose turn it is, or else of another one."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        steps_of: Callable[[str], int],
        timers: Timers,
        wake: Callable[[], None],
    ) -> None:
        """`steps_of` says how many steps a model's plan may have if nothing but its runs is to be
        sent; `wake` has it asked again.
        """
        self._models = models
        self._steps_of = steps_of
        self._timers = timers
        self._wake = wake
        self._wakes = False  # a timer will: the next plan is sent later
        self._next = 0  # the model whose turn it is

    def take(self, now: float, *, behind: bool) -> Plan | None:
        """The next plan at a time of trio's clock; of the models that may send one `behind` the
        plan at the worker, if there is one.
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
                self.wake_in(wait)
                continue
            # Another model that has something to send waits for a step, not for a plan of several.
            alone = len(schedulers) == 1 or all(s is scheduler or s.is_idle for s in schedulers)
            plan = scheduler.next_plan(self._steps_of(names[place]) if alone else 1)
            if plan is not None:
                self._next = (place + 1) % len(schedulers)
                return plan
        return None

    def wake_in(self, seconds: float) -> None:
        """Has it asked again in so many seconds, or sooner."""
        if not self._wakes:
            self._wakes = True
            self._timers.call_later(seconds, self._time_came)

    def _time_came(self) -> None:
        self._wakes = False
        self._wake()


def share_worker(schedulers: Sequence[Scheduler]) -> None:
    """Has the adaptive policies of one worker's models count what users have had together."""

    def others_step(scheduler: Scheduler) -> bool:
        return any(other.in_flight.steps for other in schedulers if other is not scheduler)

    active = ActiveUsers()
    policies = [(s, s.policy) for s in schedulers if isinstance(s.policy, Adaptive)]
    for scheduler, policy in policies:
        policy.share(active, policies[0][1].shares, partial(others_step, scheduler))
