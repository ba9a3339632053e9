"""Sends plans to the worker and takes its answers in, as the pacing decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from pie_control.instances.turns import Executor
from pie_control.scheduler.link import Worker
from pie_control.scheduler.pacing import (
    FOLLOW_SECONDS,
    STEPS_IN_FLIGHT,
    Decision,
    Pacing,
    RunningPlans,
)
from pie_control.scheduler.scheduler import Scheduler
from pie_control.timers import Timers
from pie_py.wire.plan import Forward, PlanResult


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
    """A model as the dispatcher needs it."""

    @property
    def scheduler(self) -> Scheduler:
        """Forms its plans."""

    @property
    def evictor(self) -> PageMover | None:
        """Moves its pages; None if they stay."""


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
        self._models = models
        self._executor = executor
        self._link = link
        self._timers = timers
        self._clock = clock
        self._pacing = Pacing()
        self._plans = RunningPlans()
        self._wakes = False  # a timer will: the next plan is sent later
        self._next_first = 0  # models take turns
        self._running_ns = 0  # of the plan whose results are coming, so far
        self._running_steps = 0

    def after_turn(self, launches: bool) -> None:
        """Called at the end of every turn of the guests, with whether clients' requests wait whose
        programs may bring commands.
        """
        if launches and self._decide(launches) is Decision.GATHER:
            self._executor.give_another()
            return
        for service in self._models.values():
            if service.evictor is not None:
                service.evictor.after_turn()
        self.pump()
        for service in self._models.values():
            # Asked again: forming a plan may have had a run wait for a page. Commands have been
            # sent, so pages may have become free.
            if service.evictor is not None and service.evictor.waits:
                service.evictor.settle()

    def pump(self) -> None:
        """Sends the plans that the worker may have now."""
        sent = True
        while sent:
            decision = self._decide()
            if decision is Decision.SEND:
                sent = self._send(behind=False)
            elif decision is Decision.FOLLOW:
                sent = self._send(behind=True)
            else:
                if decision is Decision.CUT:
                    self._cut()
                elif decision is Decision.LATER:
                    self._wake_in(self._plans.left(self._clock()) - FOLLOW_SECONDS)
                return

    def _wake_in(self, seconds: float) -> None:
        if not self._wakes:
            self._wakes = True
            self._timers.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._wakes = False
        self._executor.give_another()

    def on_results(self, results: list[PlanResult]) -> None:
        """Takes the worker's answers in, and runs the guests that waited for them, each once."""
        self._executor.turn(partial(self._deliver, results))

    def _deliver(self, results: list[PlanResult]) -> None:
        for result in results:
            self._running_ns += sum([batch.nanoseconds for batch in result.results])
            service = self._models.get(result.model)
            if service is not None:
                self._running_steps += service.scheduler.complete(result)
            if result.last:
                seconds = self._running_ns / 1e9
                self._pacing.plan_took(result.model, seconds, max(1, self._running_steps))
                self._plans.over(self._clock(), seconds)
                self._running_ns = self._running_steps = 0

    def _decide(self, launches: bool = False) -> Decision:
        services = self._models.values()
        steps = sum([service.scheduler.steps_in_flight for service in services])
        idle, now = self._link.idle, self._clock()
        if idle:
            self._plans.lost()
        return self._pacing.decide(
            now,
            idle=idle,
            plans=self._link.in_flight,
            caught_up=self._executor.caught_up,
            launches=launches,
            goes_on=launches and any(service.scheduler.goes_on for service in services),
            steps=steps,
            others=steps > STEPS_IN_FLIGHT and self._others_wait(),
            left=0.0 if idle else self._plans.left(now),
        )

    def _others_wait(self) -> bool:
        """Whether something waits for more than the steps of runs that are at the worker."""
        for service in self._models.values():
            scheduler = service.scheduler
            if scheduler.waits or scheduler.has_idle_steps:
                return True
            if not (scheduler.steps_in_flight or scheduler.is_idle):
                return True
        return False

    def _cut(self) -> None:
        """Has the worker leave out what it has not begun of runs' steps."""
        for service in self._models.values():
            cut = service.scheduler.cut()
            if cut is not None:
                self._link.order(cut)
                self._pacing.cut()

    def _send(self, *, behind: bool) -> bool:
        """Sends the next plan; the models take turns. Returns whether there was one."""
        names = list(self._models)
        schedulers = [self._models[name].scheduler for name in names]
        if len(schedulers) > 1:
            for scheduler in schedulers:  # guesses of one model's runs may be another one's
                scheduler.note_changes()
        for i in range(len(schedulers)):
            place = (self._next_first + i) % len(schedulers)
            scheduler = schedulers[place]
            if behind and not scheduler.may_follow():
                continue
            if (wait := scheduler.policy.wait(self._clock(), scheduler.ready)) > 0:
                self._wake_in(wait)
                continue
            # Another model that has something to send waits for a step, not for a plan of several.
            alone = len(schedulers) == 1 or all(s is scheduler or s.is_idle for s in schedulers)
            plan = scheduler.next_plan(self._pacing.steps_of(names[place]) if alone else 1)
            if plan is not None:
                self._next_first = (place + 1) % len(schedulers)
                self._link.send(plan)
                self._pacing.sent()
                # Without those of further steps.
                inputs = [len(b.inputs) for b in plan.batches if isinstance(b, Forward)]
                self._plans.sent(self._clock(), sum(inputs))
                return True
        return False
