"""Plans at the worker, and what their results do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import structlog

from pie_control.errors import ApiError
from pie_control.scheduler.backlog import CommandBacklog
from pie_control.scheduler.commands.command import Command, CommandQueue
from pie_control.scheduler.plan_batch import PlanBatch
from pie_control.scheduler.policy import SchedulingPolicy
from pie_control.scheduler.stats import SchedulerStats
from pie_py.wire.plan import BatchResult, Forward, PlanResult

log = structlog.get_logger("pie.scheduler")

MOST_LOGGED = 20  # instances of a failed batch

# Learns what batches that belong together have taken, before their commands are forgotten.
Took: TypeAlias = Callable[[Sequence[PlanBatch], Sequence[BatchResult]], None]


@dataclass(slots=True)
class _SentPlan:
    """A plan at the worker."""

    batches: list[PlanBatch]
    further: list[int]  # batches with which further steps begin
    follows: bool  # goes on with a queue of the plan before: no time to wait
    sent_ns: int
    answered: int = 0  # batches whose results are there
    is_cut: bool = False  # the worker is to begin no further step


class InFlight:
    """Hands results to futures: values, failures, and what depends on failures."""

    def __init__(
        self,
        backlog: CommandBacklog,
        stats: SchedulerStats,
        policy: SchedulingPolicy,
        clock_ns: Callable[[], int],
        took: Took | None,
    ) -> None:
        self._took = took
        self._policy = policy
        self._clock_ns = clock_ns
        self._backlog = backlog
        self._stats = stats
        self.plans: dict[int, _SentPlan] = {}  # oldest first
        self.steps = 0  # of these, that are not answered
        self._after: list[Callable[[], None]] | None = None  # called after the results at hand

    def add(self, plan: int, batches: list[PlanBatch], further: list[int], follows: bool) -> None:
        """Notes a plan that is sent. With `further` batches further steps begin; it `follows` if it
        goes on with a queue of the plan before.
        """
        self.plans[plan] = _SentPlan(batches, further, follows, self._clock_ns())
        self.steps += 1 + len(further)

    def cut(self) -> int | None:
        """The number of the newest plan, which is to be cut; None if it has no step to leave out,
        or is cut already.

        Nothing else is sent before its answer: only that says how far the worker has come.
        """
        number = next(reversed(self.plans), None)
        if number is None:
            return None
        plan = self.plans[number]
        if plan.is_cut or not any(start > plan.answered for start in plan.further):
            return None
        plan.is_cut = True
        return number

    @property
    def is_mostly_over(self) -> bool:
        """True if most runs of the newest plan have ended."""
        plan = next(reversed(self.plans.values()), None)
        steps = None if plan is None or not plan.batches else plan.batches[-1].steps
        return steps is not None and 2 * steps.living < steps.count

    def batches(self) -> Iterator[PlanBatch]:
        """Batches whose results are not there."""
        for plan in self.plans.values():
            for batch in plan.batches:
                if not batch.done:
                    yield batch

    def after_results(self, call: Callable[[], None]) -> None:
        """Calls once the results at hand are in their futures; at once if there are none."""
        if self._after is None:
            call()
        else:
            self._after.append(call)

    def complete(self, result: PlanResult) -> int:
        """Takes results of a plan, all or the next of them: futures become ready, marks are
        notified, failures spread. Returns steps of which these are the last results.
        """
        plan = self.plans.get(result.id)
        if plan is None:
            return 0
        before = plan.answered
        batches, answers = self._answered(plan, result)
        # What passed at the worker for a batch of forwards: its light batches and the pause before
        # it count.
        taken = sum([answer.nanoseconds for answer in answers]) + plan.follows * result.idle_ns
        seconds = taken / 1e9 / max(1, [batch.kind for batch in batches].count(Forward.kind))
        if self._took is not None:
            self._took(batches, answers)
        failed: dict[CommandQueue, None] = {}
        self._after = after = []
        now = self._clock_ns()
        for batch, answer in zip(batches, answers, strict=True):
            batch.done = True
            self._stats.worker_ns += answer.nanoseconds
            if batch.kind == Forward.kind and answer.nanoseconds:
                self._policy.took(batch, answer.nanoseconds / 1e9, seconds)
                if batch.steps is not None and not batch.commands:
                    batch.steps.runs.took(batch.steps, seconds)
            batch.note_times(plan.sent_ns, now, answer.nanoseconds)
            if answer.error is not None:
                ids = sorted({owner.id for owner in batch.owners})  # the worker's log has none
                log.error("a batch failed", instances=ids[:MOST_LOGGED], reason=answer.error[:500])
                if batch.failed is not None:
                    after.append(partial(batch.failed, answer.error))
            if batch.commands:
                self._hand_out(batch.commands, answer, failed)
            if batch.steps is not None:
                batch.steps.answered(batch.kind, answer, len(batch.commands))
            batch.finish()
        for queue in failed:
            if queue.drops:
                self._backlog.flush(queue)
        if self._backlog.over:
            self._backlog.retire()
        self._after = None
        for call in after:
            call()
        ends = (*plan.further, len(plan.batches))
        done = sum([before < end <= plan.answered for end in ends])
        self.steps -= done
        return done

    def _answered(
        self, plan: _SentPlan, result: PlanResult
    ) -> tuple[list[PlanBatch], list[BatchResult]]:
        """The batches that results are for, and the results; errors if their number is wrong."""
        results = result.results
        batches = plan.batches[plan.answered :]
        end = plan.answered + len(results)
        wrong = result.first != plan.answered or len(results) > len(batches)
        if result.last and not wrong and plan.is_cut and end in plan.further:
            self._leave_out(plan, end)
        elif wrong or (result.last and len(results) < len(batches)):
            text = f"the worker answered {len(batches)} batches with {len(results)} results"
            results = [BatchResult(error=text)] * len(batches)
        del batches[len(results) :]
        plan.answered += len(results)
        if plan.answered == len(plan.batches):
            del self.plans[result.id]
            if plan.follows:
                stats, idle = self._stats, result.idle_ns
                stats.plans_followed += 1
                stats.worker_idle_ns += idle
                stats.worker_idle_longest_ns = max(stats.worker_idle_longest_ns, idle)
        return batches, results

    def _leave_out(self, plan: _SentPlan, first: int) -> None:
        """Takes the batches of the steps that a plan was cut by: they are not run."""
        left_out = plan.batches[first:]
        del plan.batches[first:]
        self.steps -= sum(start >= first for start in plan.further)
        plan.further = [start for start in plan.further if start < first]
        for steps in reversed(dict.fromkeys(batch.steps for batch in left_out)):
            if steps is not None:
                steps.runs.undo(steps)
                self._stats.step_sent(steps.count, -1)

    def _hand_out(
        self, commands: Sequence[Command], answer: BatchResult, failed: dict[CommandQueue, None]
    ) -> None:
        """Resolves or fails the commands of a batch, and adds the queues that failed."""
        if answer.error is None:
            commands[0].deliver(commands, answer)
        refused = answer.refused or {}
        for i, command in enumerate(commands):
            queue = command.queue
            if not command.is_part:
                queue.owner.queued_commands -= 1
            if queue.failure is not None:
                command.fail_as_dependant()
            elif answer.error is not None:
                command.fail(ApiError("internal", f"{command.kind} failed: {answer.error}"))
            elif i in refused:
                command.fail(command.refusal(refused[i]))
            if queue.failure is not None:
                failed[queue] = None

    def fail_all(self, error: ApiError) -> None:
        """Fails all that is sent: the worker is lost."""
        for batch in list(self.batches()):
            batch.done = True
            for command in batch.commands:
                if not command.is_part:
                    command.queue.owner.queued_commands -= 1
                command.fail(error)
            batch.finish()
        self.plans.clear()
        self.steps = 0
