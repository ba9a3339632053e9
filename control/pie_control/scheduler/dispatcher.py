"""Sends plans to the worker and takes its answers in, in a plain loop or an overlapped one. The
models of one worker take turns with their plans.

In the plain loop a plan is sent, its answer is taken in, the guests that it wakes run, and the next
plan is sent: the worker stands still from its answer to that. In the overlapped loop the next plan
is formed and sent while the worker runs the one before. That one's tokens are not known yet: they
stay on the device, where the next plan reads them. So it may go only if it leaves nothing behind
that has to see them first (`Scheduler.may_follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from pie_control.instances.turns import Executor
from pie_control.scheduler.adaptive import Adaptive
from pie_control.scheduler.fair_share import ActiveUsers
from pie_control.scheduler.link import Worker
from pie_control.scheduler.pacing import FOLLOW_SECONDS, PLANS_IN_FLIGHT, STEPS_IN_FLIGHT, Pacing
from pie_control.scheduler.scheduler import Scheduler
from pie_control.timers import Timers
from pie_py.wire.plan import Plan, PlanResult


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
        return any(other.in_flight.steps for other in schedulers if other is not scheduler)

    active = ActiveUsers()
    policies = [(s, s.policy) for s in schedulers if isinstance(s.policy, Adaptive)]
    for scheduler, policy in policies:
        policy.share(active, policies[0][1].shares, partial(others_step, scheduler))


class Dispatcher:
    """The hot path of the control process, one call chain without a pass through the event loop.

    An answer of the worker resolves futures; the guests that it wakes have their turn; the turn
    ends here, where the commands of the next step are sent.
    """

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        executor: Executor,
        link: Worker,
        timers: Timers,
        clock: Callable[[], float],
    ) -> None:
        self._executor = executor
        self._link = link
        self._timers = timers
        self._clock = clock
        self._pacing = Pacing()
        self._models = models
        self._next = 0  # the model whose turn it is
        self._wakes = False  # a timer will: the next plan is sent later

    def pump(self) -> None:
        """Sends the plans that the worker may have now."""
        while self._plain_loop() if self._link.idle else self._overlapped_loop():
            pass

    def _plain_loop(self) -> bool:
        """One round while the worker has nothing; returns whether a plan was sent."""
        now = self._clock()
        if self._pacing.waits_for_turns(now, caught_up=self._executor.caught_up):
            return False  # guests are ready whose commands go along
        return self._send(now, behind=False)

    def _overlapped_loop(self) -> bool:
        """One round while the worker runs a plan; returns whether one was sent behind it."""
        if sum([each.scheduler.in_flight.steps for each in self._models.values()]) > (
            STEPS_IN_FLIGHT
        ):
            if self._others_wait():
                self._cut()  # what waits goes before steps that are not begun
            return False
        if not 0 < self._link.in_flight < PLANS_IN_FLIGHT:
            return False
        now = self._clock()
        if (left := self._pacing.left(now)) > FOLLOW_SECONDS:
            self._wake_in(left - FOLLOW_SECONDS)  # what comes meanwhile goes along
            return False
        if not self._executor.caught_up:
            return False  # the worker is busy, so there is time for them
        return self._send(now, behind=True)

    def _send(self, now: float, *, behind: bool) -> bool:
        """Sends the next plan if there is one; returns that."""
        plan = self._next_plan(now, behind=behind)
        if plan is None:
            return False
        self._pacing.sent(now, plan, behind=behind)
        self._link.send(plan)
        return True

    def _next_plan(self, now: float, *, behind: bool) -> Plan | None:
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
            plan = scheduler.next_plan(self._pacing.steps_of(names[place]) if alone else 1)
            if plan is not None:
                self._next = (place + 1) % len(schedulers)
                return plan
        return None

    def _others_wait(self) -> bool:
        """True if something waits for more than the steps of runs that are at the worker."""
        for model in self._models.values():
            scheduler, sent = model.scheduler, model.scheduler.in_flight
            if scheduler.holds:
                continue
            if scheduler.waits or sent.is_mostly_over or not (sent.steps or scheduler.is_idle):
                return True
        return False

    def _cut(self) -> None:
        """Has the worker leave out what it has not begun of runs' steps."""
        for model in self._models.values():
            if (cut := model.scheduler.cut()) is not None:
                self._link.order(cut)
                self._pacing.cut()

    def on_results(self, results: list[PlanResult]) -> None:
        """Takes the worker's answers in, and runs the guests that waited for them, each once."""
        self._executor.turn(partial(self._deliver, results))

    def _deliver(self, results: list[PlanResult]) -> None:
        for result in results:
            model = self._models.get(result.model)
            steps = 0 if model is None else model.scheduler.complete(result)
            self._pacing.answered(self._clock(), result, steps)

    def after_turn(self, launches: bool) -> None:
        """Guests' turn is over; `launches`: requests wait whose programs may bring commands."""
        if launches and self._link.idle:
            goes_on = any(model.scheduler.goes_on for model in self._models.values())
            if self._pacing.gathers(self._clock(), goes_on=goes_on):
                self._executor.give_another()
                return
        evictors = [each.evictor for each in self._models.values() if each.evictor is not None]
        for evictor in evictors:
            evictor.after_turn()
        self.pump()
        for evictor in evictors:  # to form a plan may need pages, to send commands may free some
            if evictor.waits:
                evictor.settle()

    def _wake_in(self, seconds: float) -> None:
        if not self._wakes:
            self._wakes = True
            self._timers.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._wakes = False
        self._executor.give_another()
