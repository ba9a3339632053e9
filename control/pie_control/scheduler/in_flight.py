"""Plans at the worker, the batches that they have, and what their results do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import structlog

from pie_control.errors import ApiError
from pie_control.scheduler.backlog import KINDS, CommandBacklog
from pie_control.scheduler.commands.command import Command, CommandQueue, Mark, QueueOwner
from pie_control.scheduler.commands.forward import NO_ADAPTER, NO_SAMPLER
from pie_control.scheduler.commands.pages import SwapInCommand, SwapOutCommand
from pie_control.scheduler.commands.sample import SampleCommand
from pie_control.scheduler.runs import STEP, Steps
from pie_py.wire.plan import (
    Batch,
    BatchResult,
    EmbedSampled,
    Forward,
    Int32,
    PlanResult,
    Sample,
    SwapIn,
    SwapOut,
)


def _of_kinds() -> dict[str, int]:
    return {kind.kind: 0 for kind in KINDS}


@dataclass(slots=True)
class SchedulerStats:
    """Counters of one model's plans."""

    plans: int = 0
    plans_ahead: int = 0  # sent while another one was at the worker
    parts: int = 0  # of forwards that were cut, without the last of each
    further_steps: int = 0  # of plans, behind the first
    steps_left_out: int = 0  # of these, by plans that were cut
    batches: dict[str, int] = field(default_factory=_of_kinds)
    commands: dict[str, int] = field(default_factory=_of_kinds)
    rows: int = 0
    prompt_tokens: int = 0  # inputs of forwards of several
    worker_ns: int = 0  # that batches took
    plans_followed: int = 0  # plans that continue the one before
    worker_idle_ns: int = 0  # how long the worker waited for these
    worker_idle_longest_ns: int = 0

    def batch_sent(self, kind: str, commands: int, rows: int, *, new: bool = True) -> None:
        """Counts a batch of a plan, or what one has in addition to what was counted."""
        self.commands[kind] += commands
        self.batches[kind] += new
        self.rows += rows

    def step_sent(self, count: int, sign: int = 1) -> None:
        """Counts a further step of so many runs; with -1 as sign takes it back: it is not run."""
        for kind in STEP:
            self.commands[kind] += sign * count
            self.batches[kind] += sign
        self.rows += sign * len(STEP) * count
        if sign > 0:
            self.further_steps += 1
        else:
            self.steps_left_out += 1

    def values(self) -> dict[str, Any]:
        """All of them, by name; and the tokens that samplers have chosen."""
        return asdict(self) | {"generated_tokens": self.commands[SampleCommand.kind]}


@dataclass(slots=True, eq=False)
class PlanBatch:
    """One batch of a plan, from the forming of the plan to its results.

    It has commands, a step of runs, both, or a batch that is ready.
    """

    kind: str  # of batch
    commands: Sequence[Command] = ()  # of this kind
    steps: Steps | None = None  # of runs, behind the commands
    # The batch for the worker, if there are no commands; None if an `Again` stands for it.
    ready: Batch | None = None
    failed: Callable[[str], None] | None = None  # called if it fails
    marks: list[Mark] = field(default_factory=list)  # that stand in queues behind the commands
    done: bool = False
    _part: EmbedSampled | Forward | Sample | None = None  # of the steps, behind commands

    def add(self, steps: Steps, part: EmbedSampled | Forward | Sample) -> None:
        """Adds a step of runs behind the commands, which are of the same kind."""
        self.steps, self._part = steps, part

    @property
    def owners(self) -> list[QueueOwner]:
        """Whose commands it has; of the batches of a run's step its forward alone says so."""
        found = [command.queue.owner for command in self.commands]
        if self.steps is not None and self.kind == Forward.kind:
            found += self.steps.owners
        return found

    @property
    def pages_moved(self) -> int:
        """Pages that go to host memory or come back."""
        if isinstance(self.ready, SwapIn | SwapOut):
            return len(self.ready.pages)
        moves = [c for c in self.commands if isinstance(c, SwapInCommand | SwapOutCommand)]
        return sum(len(command.pages) for command in moves)

    def note_times(self, sent_ns: int, now_ns: int, device_ns: int) -> None:
        """Notes the batch in the time lines of its instances: when its plan was sent, when its
        results came, and what it took at the worker. Of the batches of a run's step its forward
        alone is noted, once its token comes.
        """
        steps = self.steps if self.kind == Forward.kind else None
        if not self.commands and steps is None:
            return
        size = len(self.commands) + (0 if steps is None else steps.count)
        span = "batch", self.kind, sent_ns, now_ns, size, device_ns
        for command in self.commands:
            command.queue.owner.timeline.add(span)
        if steps is not None:
            steps.span = span

    def join(self) -> Batch:
        """The batch for the worker."""
        if self.ready is not None:
            return self.ready
        batch = self.commands[0].join(self.commands)
        return batch if self._part is None else joined(batch, self._part)

    def finish(self) -> None:
        """Notifies the marks, and forgets what the batch held: its queues may refer to it."""
        self.done = True
        for mark in self.marks:
            mark.passed()
        self.commands, self.marks = (), []
        self.ready = self._part = self.steps = None


# Columns that a batch may leave out, and what stands there for a row that has nothing to say.
_LEFT_OUT = {
    "adapters": NO_ADAPTER,
    "attends": NO_SAMPLER,
    **dict.fromkeys(("observed", "detail", "attend_steps"), 0),
    **dict.fromkeys(("mixed", "drafts"), -1),
}


def joined(commands: Batch, steps: EmbedSampled | Forward | Sample) -> Batch:
    """One batch of a batch of commands and of one of the same kind of runs, in this order."""
    if type(commands) is not type(steps):
        raise TypeError(f"{commands.kind} and {steps.kind} are not one batch")
    found = {}
    for field_ in fields(commands):
        name, both = field_.name, [getattr(one, field_.name) for one in (commands, steps)]
        if name.endswith("_starts"):
            both = [both[0], both[1][1:] + both[0][-1]]
        elif name in _LEFT_OUT:
            both = _filled(both, [_rows(one) for one in (commands, steps)], _LEFT_OUT[name])
        elif name == "masks":
            both = [one for one in both if one.size] or both[:1]
        elif name == "masked":
            first, second = both
            shift = len(commands.masks)  # type: ignore[union-attr]
            both = [first, np.where(second < 0, second, second + shift)]
        found[name] = np.concatenate(both)
    return type(commands)(**found)


def _rows(batch: Any) -> int:
    """Rows of a batch."""
    return len(batch.has_masked if isinstance(batch, Forward) else batch.samplers)


def _filled(both: list[Int32], rows: list[int], absent: int) -> list[Int32]:
    """A column of both batches: where one leaves it out, as if it said nothing of each row."""
    shape = next((one.shape[1:] for one in both if one.size), None)
    if shape is None:
        return both
    return [
        one if one.size else np.full((count, *shape), absent, np.int32)
        for one, count in zip(both, rows, strict=True)
    ]


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
        learn: Callable[[PlanBatch, float, float], None],
        clock_ns: Callable[[], int],
        took: Took | None,
    ) -> None:
        self._took = took
        self._learn = learn  # what forwards took, as `SchedulingPolicy.took`
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
                self._learn(batch, answer.nanoseconds / 1e9, seconds)
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
        if answer.values is not None:
            commands[0].deliver(commands, answer.values)
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
