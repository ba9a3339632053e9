"""Forms plans: which batches of what is queued the worker is to run next.

A plan's batches are formed as if the earlier ones had run. First come light batches: of the kinds
that queues have first, the one whose oldest command has waited longest (the paper's rule). They are
short, and bring more queues to their forward. Then comes one forward batch of all that is ready,
then light batches again, such as the distributions of what the forward computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, cast

from pie_control.scheduler.backlog import KINDS, CommandBacklog
from pie_control.scheduler.batching import cut, gather
from pie_control.scheduler.commands.command import BatchLimits, Command, CommandQueue
from pie_control.scheduler.commands.forward import ForwardCommand
from pie_control.scheduler.commands.pages import SwapInCommand
from pie_control.scheduler.commands.run import RunCommand
from pie_control.scheduler.commands.sample import SampleCommand
from pie_control.scheduler.in_flight import PlanBatch, SchedulerStats
from pie_control.scheduler.policy import SchedulingPolicy
from pie_control.scheduler.runs import STEP, Runs, Steps
from pie_py.device_programs.step_cost import whole_cost
from pie_py.wire.plan import Again, EmbedSampled, Forward, Sample

# A plan holds at most this many light batches before and after its forward batch, so that its
# length stays that of one step whatever a single queue asks for.
LIGHT_BATCHES = 8
LIGHT_KINDS = [kind for kind in KINDS if kind.is_light]


class TransferPace(Protocol):
    """Pages that may come back from host memory beside one step."""

    @property
    def left(self) -> int:
        """Of this step."""

    def spend(self, pages: int) -> None:
        """Counts pages that come back in it."""


class PlanForming:
    """Takes commands out of the backlog, batch by batch."""

    def __init__(
        self,
        backlog: CommandBacklog,
        runs: Runs,
        limits: BatchLimits,
        stats: SchedulerStats,
        policy: SchedulingPolicy,
        short: int,
        pace: TransferPace | None,
    ) -> None:
        self._pace = pace
        self._backlog = backlog
        self._runs = runs
        self._limits = self._left = limits  # of a batch, and what the plan leaves of that
        self._stats = stats
        self._policy = policy
        self._short = short
        self._passed_over = False  # the newest plan had no room for runs
        self.newest: Steps | None = None  # of runs, in the newest plan
        # Queues with commands in the newest plan; a plan without any leaves them as they were.
        self.queues_in_plan: dict[CommandQueue, None] = {}

    def form(self) -> list[PlanBatch]:
        """The batches of a plan's first step; none if nothing can be sent."""
        before, self.queues_in_plan = self.queues_in_plan, {}
        batches: list[PlanBatch] = []
        limits, heads = self._limits, self._backlog.heads[ForwardCommand]
        self._left = limits
        self.enter_runs()
        # First, for it may end instances whose commands would be gathered below.
        self._runs.take_pages()
        self._add_light(batches)
        forwards = cast(list[ForwardCommand], gather(heads, limits)) if heads else []
        room = self._room_for_runs(forwards)
        if self._passed_over and room < 1:  # a forward that fills a batch; now it is the runs' turn
            forwards, room = [], self._room_for_runs([])
        self._passed_over = room < 1 and self._runs.waits
        formed = self._runs.step(room)
        steps = self.newest = None if formed is None else formed.steps
        if formed is not None:
            self._add_step(formed.steps, formed.embed, batches)
            for text in formed.texts:
                batches.append(PlanBatch(text.kind, (), formed.steps, text))
                self._stats.batch_sent(text.kind, formed.steps.count, text.tokens.size)
        if forwards:
            users: set[str] = set()  # whose steps are in the plan
            if steps is not None:
                limits = limits.without(steps.inputs)
                users = steps.users
            forwards = self._policy.choose(forwards, limits, users, self._backlog.users)
            for command in forwards:
                if (count := len(command.inputs)) > 1:  # one is a step, whose token is counted
                    command.queue.owner.prompt_tokens += count
                    self._stats.prompt_tokens += count
            if forwards:
                self._send(forwards, batches)
        if formed is not None:
            self._add_step(formed.steps, formed.forward, batches, bool(forwards))
            samples = self._send_samples(formed.steps, batches)
            self._add_step(formed.steps, formed.sample, batches, samples)
        if forwards or formed is not None:
            self._add_light(batches)
        if not batches and (returning := self._gathered(SwapInCommand)):
            self._send(returning, batches)  # what they were to come beside cannot go
        if not batches:
            self.queues_in_plan = before
        return batches

    def further_steps(self, most: int) -> list[tuple[list[PlanBatch], Again]]:
        """Further steps of the runs that are in the plan just formed, at most so many: of each, its
        three batches, and what stands for them in the plan.

        None if something else waits. What is queued but held back may come along with the next
        step.
        """
        if self.newest is None or self.queues_in_plan or any(self._backlog.heads.values()):
            return []
        found = []
        for steps, again in self._runs.further(self.newest, most):
            found.append(([PlanBatch(kind, (), steps) for kind in STEP], again))
            self._stats.step_sent(steps.count)
        return found

    def _room_for_runs(self, forwards: list[ForwardCommand]) -> int:
        """Steps of runs that a batch takes, so that the oldest forward goes along."""
        limits = self._limits
        if not forwards:
            return min(limits.tokens, limits.commands)
        oldest = min(forwards, key=lambda command: (command.queue.rank[0], command.number))
        need = max(min(self._short, len(oldest.inputs)), oldest.first_piece)
        return min(limits.tokens - need, limits.commands - 1)

    def enter_runs(self) -> None:
        """Takes in the runs that are the first in their queues now."""
        heads = self._backlog.heads[RunCommand]
        for queue in list(heads):
            run = cast(RunCommand, queue.pending[0])
            if run.over:
                self._backlog.run_is_over(run)
            elif not run.is_held_back():
                del heads[queue]
                self._runs.enter(run)
        if self._backlog.over:
            self._backlog.retire()

    def _add_step(
        self,
        steps: Steps,
        part: EmbedSampled | Forward | Sample,
        batches: list[PlanBatch],
        to_last: bool = False,
    ) -> None:
        """Adds a part of a step to the last batch, which is of its kind, or as one of its own."""
        if to_last:
            batches[-1].add(steps, part)
        else:
            batches.append(PlanBatch(part.kind, (), steps, part))
        rows = steps.count if part.kind == EmbedSampled.kind else steps.inputs
        self._stats.batch_sent(part.kind, steps.count, rows, new=not to_last)

    def _send_samples(self, steps: Steps, batches: list[PlanBatch]) -> bool:
        """Adds the choices of commands that can be made with those of runs; whether there are some.

        Both in one batch: each batch of choices reads the whole vocabulary's weights.
        """
        heads = self._backlog.heads[SampleCommand]
        if not heads:
            return False
        limits = self._left.without(steps.inputs)
        commands = gather(heads, limits) if limits.commands > 0 else []
        commands = cut(commands, limits)
        if commands:
            self._send(commands, batches)
        return bool(commands)

    def _add_light(self, batches: list[PlanBatch]) -> None:
        """Adds light batches until no queue has a light command first."""
        heads = self._backlog.heads
        for _ in range(LIGHT_BATCHES):
            waiting = [kind for kind in LIGHT_KINDS if heads[kind]]
            if not waiting:
                return
            for kind in self._oldest_first(waiting, batches):
                commands: Sequence[Command] = self._gathered(kind)
                if kind is SwapInCommand:
                    commands = self._paced(cast(list[SwapInCommand], commands), batches)
                if commands:
                    self._send(commands, batches)
                    break
            else:
                return

    def _gathered(self, kind: type[Command]) -> list[Command]:
        """The commands that a batch of a light kind may have."""
        return cut(gather(self._backlog.heads[kind], self._left), self._left)

    def _paced(self, commands: list[SwapInCommand], batches: list[PlanBatch]) -> Sequence[Command]:
        """As many pages of those that come back as a step hides; all if there is none to run."""
        pace, heads = self._pace, self._backlog.heads[ForwardCommand]
        if pace is None or not (
            self._runs.waits
            or any(batch.kind == Forward.kind for batch in batches)
            or any(not queue.pending[0].is_held_back() for queue in heads)
        ):
            return commands
        found, left = [], pace.left
        for command in commands:
            if not left:
                break
            part = command if len(command.pages) <= left else command.split(left)
            found.append(part)
            left -= len(part.pages)
        pace.spend(pace.left - left)
        return found

    def _oldest_first(
        self, kinds: list[type[Command]], batches: list[PlanBatch]
    ) -> list[type[Command]]:
        """The kinds that may have one more batch, the one whose command waits longest first.

        Pages come back last: what else is light brings forwards that they come beside.
        """
        heads = self._backlog.heads
        for kind in [kind for kind in kinds if kind.one_batch_a_plan]:
            if any(batch.kind == kind.kind for batch in batches):
                kinds.remove(kind)
        if len(kinds) > 1:
            numbers = {kind: min([q.pending[0].number for q in heads[kind]]) for kind in kinds}
            kinds.sort(key=lambda kind: (kind is SwapInCommand, numbers[kind]))
        return kinds

    def _send(self, commands: Sequence[Command], batches: list[PlanBatch]) -> None:
        """Takes the commands of a batch out of their queues and adds it to the plan."""
        kind = type(commands[0])
        if (costs := kind.program_costs(commands)) is not None:
            self._left = replace(self._left, programs=self._left.programs - whole_cost(costs))
        batch = PlanBatch(kind.kind, commands)
        queues: dict[CommandQueue, None] = {}
        ahead = kind.runs_ahead
        if ahead is not None:
            for command in commands:
                command.queue.ahead = ahead and not command.queue.is_idle
        for command in commands:
            queue = command.queue
            if command.is_part:
                self._stats.parts += 1
            else:
                queue.pending.popleft()
                if command.marks:
                    batch.marks += command.marks
            queue.last = batch
            queues[queue] = None
        if kind.is_notified_when_sent:
            for command in commands:
                command.was_sent()
        heads = self._backlog.heads[kind]
        if len(queues) == len(heads):
            heads.clear()
        else:
            for queue in queues:
                del heads[queue]
        for queue in queues:
            self._backlog.advance(queue)
        self.queues_in_plan.update(queues)
        batches.append(batch)
        self._stats.batch_sent(kind.kind, len(commands), kind.count_rows(commands))
