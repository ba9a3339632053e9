"""Plans at the worker, and what their results do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import structlog

from pie_control.commands.command import Command
from pie_control.commands.queue import CommandQueue, Owner
from pie_control.errors import ApiError
from pie_control.scheduler.backlog import Backlog
from pie_control.scheduler.entry import Entry
from pie_control.scheduler.figures import Figures
from pie_control.scheduler.policy import SchedulingPolicy
from pie_py.wire.plan import BatchResult, Forward, PlanResult

log = structlog.get_logger("pie.scheduler")

MOST_LOGGED = 20  # instances of a failed batch


class _SentPlan:
    """A plan at the worker."""

    __slots__ = ("answered", "entries", "follows", "further", "is_cut", "sent_ns")

    def __init__(
        self, entries: list[Entry], further: list[int], follows: bool, sent_ns: int
    ) -> None:
        self.sent_ns = sent_ns
        self.entries = entries
        self.answered = 0  # batches whose results are there
        self.further = further  # entries with which further steps begin
        self.is_cut = False  # the worker has been told to begin no further step
        self.follows = follows  # goes on with a queue of the plan before: no time to wait

    @property
    def steps(self) -> int:
        """Steps that are not answered."""
        return 1 + sum(start > self.answered for start in self.further)


class InFlight:
    """Hands results to futures: values, failures, and what depends on failures."""

    def __init__(
        self,
        backlog: Backlog,
        figures: Figures,
        policy: SchedulingPolicy,
        clock_ns: Callable[[], int],
    ) -> None:
        """Takes what is queued, the counters, the policy, which learns what batches take, and the
        clock of instances' time lines.
        """
        self._policy = policy
        self._clock_ns = clock_ns
        self._backlog = backlog
        self._figures = figures
        self.plans: dict[int, _SentPlan] = {}  # oldest first
        self._told: list[Callable[[], None]] | None = None  # calls after the results at hand

    def add(self, plan: int, entries: list[Entry], further: list[int], follows: bool) -> None:
        """Notes a plan that is sent.

        Args:
            plan: its number.
            entries: its batches.
            further: entries with which further steps begin.
            follows: whether it goes on with a queue of the plan before.
        """
        self.plans[plan] = _SentPlan(entries, further, follows, self._clock_ns())

    @property
    def steps(self) -> int:
        """Steps at the worker that are not answered."""
        return sum(plan.steps for plan in self.plans.values())

    def cut(self) -> int | None:
        """The number of the newest plan, which is to be cut; None if it has no step to leave out,
        or is cut already.

        Nothing else is sent before its answer: only that tells how far the worker has come.
        """
        number = next(reversed(self.plans), None)
        if number is None:
            return None
        plan = self.plans[number]
        if plan.is_cut or plan.steps == 1:
            return None
        plan.is_cut = True
        return number

    @property
    def is_cut(self) -> bool:
        """Whether a plan has been cut and is not over."""
        return any(plan.is_cut for plan in self.plans.values())

    @property
    def is_mostly_over(self) -> bool:
        """Whether most runs of the newest plan have ended."""
        plan = next(reversed(self.plans.values()), None)
        steps = None if plan is None or not plan.entries else plan.entries[-1].steps
        return steps is not None and 2 * steps.living < steps.count

    def entries(self) -> Iterator[Entry]:
        """Batches whose results are not there."""
        for plan in self.plans.values():
            for entry in plan.entries:
                if not entry.done:
                    yield entry

    def after_results(self, tell: Callable[[], None]) -> None:
        """Calls once the results at hand are in their futures; at once if there are none."""
        if self._told is None:
            tell()
        else:
            self._told.append(tell)

    def complete(self, result: PlanResult) -> int:
        """Takes results of a plan, all or the next of them: futures become ready, marks are
        notified, failures spread.

        Returns:
            Steps of which these are the last results.
        """
        plan = self.plans.get(result.id)
        if plan is None:
            return 0
        before = plan.answered
        entries, answers = self._answered(plan, result)
        failed: dict[CommandQueue, None] = {}
        self._told = told = []
        now = self._clock_ns()
        seconds = self._seconds_of_a_step(plan, entries, answers, result.idle_ns)
        for entry, answer in zip(entries, answers, strict=True):
            entry.done = True
            self._figures.worker_ns += answer.nanoseconds
            if entry.kind == Forward.kind and answer.nanoseconds:
                self._policy.took(entry, answer.nanoseconds / 1e9, seconds)
            entry.note_times(plan.sent_ns, now, answer.nanoseconds)
            if answer.error is not None:
                _log_failure(entry.owners, answer.error)
            if answer.error is not None and entry.failed is not None:
                told.append(partial(entry.failed, answer.error))
            if entry.commands:
                self._hand_out(entry.commands, answer, failed)
            entry.answered(answer)
            entry.finish()
        for queue in failed:
            if queue.drops:
                self._backlog.flush(queue)
        self._backlog.retire()
        self._told = None
        for tell in told:
            tell()
        ends = (*plan.further, len(plan.entries))
        return sum(before < end <= plan.answered for end in ends)

    def _seconds_of_a_step(
        self, plan: _SentPlan, entries: list[Entry], answers: list[BatchResult], idle_ns: int
    ) -> float:
        """What passed at the worker for each batch of forwards, its light batches and the pause
        before included.
        """
        taken = sum([answer.nanoseconds for answer in answers]) + plan.follows * idle_ns
        return taken / 1e9 / max(1, sum([entry.kind == Forward.kind for entry in entries]))

    def _answered(
        self, plan: _SentPlan, result: PlanResult
    ) -> tuple[list[Entry], list[BatchResult]]:
        """The batches that results are for, and the results; errors if their number is wrong."""
        results = result.results
        entries = plan.entries[plan.answered :]
        end = plan.answered + len(results)
        wrong = result.first != plan.answered or len(results) > len(entries)
        if result.last and not wrong and plan.is_cut and end in plan.further:
            self._leave_out(plan, end)
        elif wrong or (result.last and len(results) < len(entries)):
            text = f"the worker answered {len(entries)} batches with {len(results)} results"
            results = [BatchResult(error=text)] * len(entries)
        del entries[len(results) :]
        plan.answered += len(results)
        if plan.answered == len(plan.entries):
            del self.plans[result.id]
            if plan.follows:
                self._figures.plan_followed(result.idle_ns)
        return entries, results

    def _leave_out(self, plan: _SentPlan, first: int) -> None:
        """Takes the entries of the steps that a plan was cut by: they are not run."""
        left_out = plan.entries[first:]
        del plan.entries[first:]
        plan.further = [start for start in plan.further if start < first]
        for steps in reversed(dict.fromkeys(entry.steps for entry in left_out)):
            if steps is not None:
                steps.undo()
                self._figures.step_left_out(steps.count)

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
        for entry in list(self.entries()):
            entry.done = True
            for command in entry.commands:
                if not command.is_part:
                    command.queue.owner.queued_commands -= 1
                command.fail(error)
            entry.finish()
        self.plans.clear()


def _log_failure(owners: Sequence[Owner], reason: str) -> None:
    """Tells whose batch has failed: the worker's log has more, but knows no instances."""
    ids = sorted({owner.id for owner in owners})
    log.error("a batch failed", instances=ids[:MOST_LOGGED], reason=reason[:500])
