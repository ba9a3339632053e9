"""When a plan is sent to the worker, and how many steps it has: times in, answers out, no I/O.

`dispatcher.py` asks, and has the loops; all constants of sending stand here.
"""

from __future__ import annotations

import math
from collections import deque

from pie_py.wire.plan import Forward, Plan, PlanResult

PLANS_IN_FLIGHT = 2  # at the worker: the one that it runs, and the one that it finds after that
# A plan of several steps has another one behind it, or one that something else waits for, as soon
# as no more than these are to be answered: the one that is run, and the one after that.
STEPS_IN_FLIGHT = 2
MOST_STEPS = 16  # of a plan
# A plan of several steps takes no longer than this. Where a step takes as long by itself, there is
# time enough for a message about each.
PLAN_SECONDS = 0.016
# A plan is sent behind another one no sooner than this before that one's end, if that is known:
# what comes meanwhile, such as a prompt, goes along and does not wait for one more plan.
FOLLOW_SECONDS = 0.050
# A turn is cut short after this long, so that the scheduler and clients have theirs.
TURN_SECONDS = 0.002
# After a result, all guests that it has woken should run before the next plan is formed. A plan of
# a part of them makes the worker take two steps where one would have done.
RESULT_TURN_SECONDS = 0.010
# How long an idle worker waits while launches still arrive. Their prompts in one batch take less
# time than one after the other, and the first of them does not slow the launches of the others.
GATHER_SECONDS = 0.030
# The longest that an idle worker waits for guests whose turn is still to come.
TURNS_SECONDS = 0.100
SLOWER = 1.02  # a plan later, the best rate may be worse by so much: it follows slow changes
CERTAIN = 0.9  # of the time that a plan takes at the best rate


class Pacing:
    """Knows since when the worker waits, and how long a step takes it."""

    def __init__(self) -> None:
        self._running = RunningPlans()
        self._nanoseconds = self._steps = 0  # of the plan whose results are coming, so far
        self._gathering_since: float | None = None
        self._turns_since: float | None = None
        self._step_seconds = 0.0  # what a step of the last plan took the worker
        self._fits: dict[str, int] = {}  # steps of a model's plan, by what its last one took
        # However short a step is. They become more as long as nothing comes between: plans that are
        # always cut would cost a message back and forth each time, in which the worker waits.
        self._most_steps = 1

    def gathers(self, now: float, *, goes_on: bool) -> bool:
        """True if an idle worker waits on for launches that are arriving, whose commands go along:
        if others' steps are there that go on, no longer than a step takes.
        """
        if self._gathering_since is None:
            self._gathering_since = now
        most = min(self._step_seconds, GATHER_SECONDS) if goes_on else GATHER_SECONDS
        return now - self._gathering_since < most

    def waits_for_turns(self, now: float, *, caught_up: bool) -> bool:
        """True if an idle worker waits on for guests whose turn is still to come: two plans of
        parts take nearly two plans' time, so a wait of one plan's time pays.
        """
        if caught_up:
            self._turns_since = None
        elif self._turns_since is None:
            self._turns_since = now
        since = -math.inf if self._turns_since is None else self._turns_since
        waits = now - since < min(self._step_seconds, TURNS_SECONDS)
        if not waits:
            self._gathering_since = None
        return waits

    def left(self, now: float) -> float:
        """Seconds for which the plan that the worker runs surely goes on."""
        return self._running.left(now)

    def sent(self, now: float, plan: Plan, *, behind: bool) -> None:
        """A plan was sent: the worker waits no longer."""
        self._gathering_since = self._turns_since = None
        if not behind:
            self._running.lost()  # what a worker that has died had
        # Without those of further steps.
        inputs = [len(batch.inputs) for batch in plan.batches if isinstance(batch, Forward)]
        self._running.sent(now, sum(inputs))

    def cut(self) -> None:
        """A plan was cut: something came between."""
        self._most_steps = 1

    def steps_of(self, model: str) -> int:
        """Steps that a model's next plan may have if nothing but its runs is to be sent."""
        return max(1, min(self._most_steps, self._fits.get(model, 1)))

    def answered(self, now: float, result: PlanResult, steps: int) -> None:
        """Results of a plan have come, by which so many of its steps are done."""
        self._nanoseconds += sum([batch.nanoseconds for batch in result.results])
        self._steps += steps
        if result.last:
            seconds = self._nanoseconds / 1e9
            self.plan_took(result.model, seconds, max(1, self._steps))
            self._running.over(now, seconds)
            self._nanoseconds = self._steps = 0

    def plan_took(self, model: str, seconds: float, steps: int = 1) -> None:
        """Learns what the worker needed for a model's plan of so many steps."""
        self._step_seconds = seconds / steps
        fit = int(PLAN_SECONDS / max(self._step_seconds, PLAN_SECONDS / MOST_STEPS))
        if steps >= max(1, min(self._most_steps, fit)):
            self._most_steps = min(2 * self._most_steps, MOST_STEPS)
        self._fits[model] = fit


class RunningPlans:
    """The plans at the worker, by the inputs of their forwards.

    A plan takes no less than its inputs take at the best rate of the plans before, in which many
    are computed together. One of few inputs takes longer than that: the time is never too long.
    """

    def __init__(self) -> None:
        self._inputs: deque[int] = deque()
        self._began = 0.0
        self._least = math.inf  # seconds for an input

    def sent(self, now: float, inputs: int) -> None:
        """A plan was sent, with so many inputs."""
        if not self._inputs:
            self._began = now
        self._inputs.append(inputs)

    def over(self, now: float, seconds: float) -> None:
        """The first plan is over, and has taken so long; the next one begins."""
        inputs = self._inputs.popleft() if self._inputs else 0
        self._began = now
        if inputs:
            self._least = min(self._least * SLOWER, seconds / inputs)

    def lost(self) -> None:
        """The worker has no plan any more."""
        self._inputs.clear()

    def left(self, now: float) -> float:
        """Seconds for which the first plan surely goes on; 0 if nothing is known."""
        if not self._inputs or self._least == math.inf:
            return 0.0
        return max(0.0, self._began + CERTAIN * self._least * self._inputs[0] - now)
