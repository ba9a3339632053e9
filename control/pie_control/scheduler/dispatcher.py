"""Sends plans to the worker and takes its answers in, in a plain loop or an overlapped one.

In the plain loop a plan is sent, its answer is taken in, the guests that it wakes run, and the next
plan is sent: the worker stands still from its answer to that. In the overlapped loop the next plan
is formed and sent while the worker runs the one before. That one's tokens are not known yet: they
stay on the device, where the next plan reads them. So it may go only if it leaves nothing behind
that has to see them first (`Scheduler.may_follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pie_control.instances.turns import Executor
from pie_control.scheduler.link import Worker
from pie_control.scheduler.next_plan import NextPlan, ServedModel
from pie_control.scheduler.pacing import FOLLOW_SECONDS, PLANS_IN_FLIGHT, STEPS_IN_FLIGHT, Pacing
from pie_control.timers import Timers
from pie_py.wire.plan import PlanResult


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
        self.has_requests: Callable[[], bool] = lambda: False  # whose programs may bring commands
        self._models = models
        self._executor = executor
        self._link = link
        self._clock = clock
        self._pacing = Pacing()
        self._next_plan = NextPlan(models, self._pacing.steps_of, timers, executor.give_another)

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
        steps = sum([model.scheduler.in_flight.steps for model in self._models.values()])
        if steps > STEPS_IN_FLIGHT:
            if any(model.scheduler.makes_way for model in self._models.values()):
                self._cut()  # what waits goes before steps that are not begun
            return False
        if not 0 < self._link.in_flight < PLANS_IN_FLIGHT:
            return False
        now = self._clock()
        if (left := self._pacing.left(now)) > FOLLOW_SECONDS:
            self._next_plan.wake_in(left - FOLLOW_SECONDS)  # what comes meanwhile goes along
            return False
        # The worker is busy, so there is time for guests.
        return self._executor.caught_up and self._send(now, behind=True)

    def _send(self, now: float, *, behind: bool) -> bool:
        """Sends the next plan if there is one; returns that."""
        plan = self._next_plan.take(now, behind=behind)
        if plan is None:
            return False
        self._pacing.sent(now, plan, behind=behind)
        self._link.send(plan)
        return True

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

    def after_turn(self, of_result: bool) -> None:
        """Guests' turn is over. If a result began it the worker comes first, because it is idle."""
        if not of_result and self.has_requests() and self._link.idle:
            goes_on = any(model.scheduler.goes_on for model in self._models.values())
            if self._pacing.gathers(self._clock(), goes_on=goes_on):
                self._executor.give_another()
                return
        evictors = [each.evictor for each in self._models.values() if each.evictor is not None]
        for evictor in evictors:
            evictor.after_turn()
        self.pump()
        for evictor in evictors:  # to form a plan may need pages, to send commands may free some
            if evictor.waiting:
                evictor.settle()
