"""Carries plans from the schedulers to the worker and its answers back: the pump of the hot path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pie_control.instances.turns import Executor
from pie_control.models.served import ServedModels
from pie_control.worker.link import Worker
from pie_py.wire.plan import PlanResult

# At the worker: the one that it runs, and the one that it finds when it has run that.
PLANS_IN_FLIGHT = 2
# How long an idle worker waits while launches are still coming in: their prompts in one batch take less
# time than one after the other, and the launches are not slowed by the first of them.
GATHER_SECONDS = 0.03
# The longest that an idle worker waits for guests whose turn is still to come.
TURNS_SECONDS = 0.1


class Dispatcher:
    """Sends a plan whenever the worker is idle and a scheduler has one, and a second one behind it as
    soon as that leaves nobody behind (`Scheduler.may_follow`): then the worker goes on without a pause
    while guests look at their results.

    Guests that are ready to run when the worker is idle go along if their turns take less time than a
    plan: two plans of parts of them would take nearly two plans' time. So those that decode stay together.

    An answer resolves futures, gives the woken guests their turn, and the turn ends here again, with
    the commands of the next step: all in one call chain, without a pass through the event loop.
    """

    def __init__(
        self,
        models: ServedModels,
        executor: Executor,
        link: Worker,
        clock: Callable[[], float],
    ) -> None:
        self._models = models
        self._executor = executor
        self._clock = clock
        self._link = link
        self._next_first = 0  # models take turns
        self._gathering_since: float | None = None
        self._turns_since: float | None = None  # the idle worker waits for guests' turns
        self._running_ns = 0  # of the plan whose results are coming, so far
        self._plan_seconds = 0.0  # what the last plan took the worker

    def may_gather(self) -> bool:
        """Whether the next plan may wait for more commands, because the worker has not waited long."""
        if not self._link.idle:
            return False
        now = self._clock()
        if self._gathering_since is None:
            self._gathering_since = now
        return now - self._gathering_since < GATHER_SECONDS

    def pump(self) -> None:
        """Sends the plans that the worker may have now."""
        link = self._link
        if link.idle:
            now = self._clock()
            if self._waits_for_turns(now):
                return  # the next one comes soon
            self._gathering_since = None
            if not self._send(behind=False):
                return
        # Guests whose turn is still to come may go along: the worker is busy, so there is time for them.
        while (
            0 < link.in_flight < PLANS_IN_FLIGHT
            and self._executor.caught_up
            and self._send(behind=True)
        ):
            pass

    def _waits_for_turns(self, now: float) -> bool:
        """Whether guests are ready to run, and have not kept the worker idle for as long as a plan takes."""
        if self._executor.caught_up:
            self._turns_since = None
            return False
        if self._turns_since is None:
            self._turns_since = now
        return now - self._turns_since < min(self._plan_seconds, TURNS_SECONDS)

    def _send(self, *, behind: bool) -> bool:
        """Sends the next plan; the models take turns. Tells whether there was one."""
        services = list(self._models.services.values())
        for i in range(len(services)):
            scheduler = services[(self._next_first + i) % len(services)].scheduler
            if behind and not scheduler.may_follow():
                continue
            plan = scheduler.next_plan()
            if plan is not None:
                self._next_first = (self._next_first + i + 1) % len(services)
                self._link.send(plan)
                self._turns_since = None
                return True
        return False

    def on_result(self, result: PlanResult) -> None:
        """Takes the worker's answer in and runs the guests that waited for it."""
        self._running_ns += sum(batch.nanoseconds for batch in result.results)
        if result.last:
            self._plan_seconds, self._running_ns = self._running_ns / 1e9, 0
        service = self._models.services.get(result.model)
        deliver = None if service is None else partial(service.scheduler.complete, result)
        self._executor.turn(deliver)
