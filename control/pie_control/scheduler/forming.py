"""Forms plans: which batches of what is queued the worker is to run next.

A plan's batches are formed as if the earlier ones had run. First come light batches: of the kinds
that queues have first, the one whose oldest command has waited longest (the paper's rule). They are
short, and bring more queues to their forward. Then comes one forward batch of all that is ready,
then light batches again, such as the distributions of what the forward computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pie_control.commands.command import BatchLimits, Command
from pie_control.commands.forward import ForwardCommand
from pie_control.commands.queue import CommandQueue
from pie_control.commands.run import RunCommand
from pie_control.commands.sample import SampleCommand
from pie_control.scheduler.backlog import KINDS, Backlog
from pie_control.scheduler.batching import cut, gather
from pie_control.scheduler.entry import Entry
from pie_control.scheduler.figures import Figures
from pie_control.scheduler.policy import SchedulingPolicy
from pie_control.scheduler.runs import Runs, Steps
from pie_py.wire.plan import Again, EmbedSampled, Forward, Sample

# A plan holds at most this many light batches before and after its forward batch, so that its
# length stays that of one step whatever a single queue asks for.
LIGHT_BATCHES = 8
LIGHT_KINDS = [kind for kind in KINDS if kind.is_light]
STEP = (EmbedSampled.kind, Forward.kind, Sample.kind)  # the batches of a step of runs


class PlanForming:
    """Takes commands out of the backlog, batch by batch."""

    def __init__(
        self,
        backlog: Backlog,
        runs: Runs,
        limits: BatchLimits,
        figures: Figures,
        policy: SchedulingPolicy,
        short: int,
    ) -> None:
        """Takes what is queued, what batches hold, the counters, the policy, and the inputs of the
        longest forward that is a step.
        """
        self._backlog = backlog
        self._runs = runs
        self._limits = limits
        self._figures = figures
        self._policy = policy
        self._short = short
        self._passed_over = False  # the newest plan had no room for runs
        self._newest: Steps | None = None  # of runs, in the newest plan
        # Queues with commands in the newest plan; a plan without any leaves them as they were.
        self.riders: dict[CommandQueue, None] = {}

    def form(self) -> list[Entry]:
        """The batches of a plan's first step; none if nothing can be sent."""
        before, self.riders = self.riders, {}
        entries: list[Entry] = []
        self._enter_runs()
        # First, for it may end instances whose commands would be gathered below.
        self._runs.take_pages()
        self._add_light(entries)
        heads = self._backlog.heads[ForwardCommand]
        forwards = cast(list[ForwardCommand], gather(heads, self._limits))
        room = self._room_for_runs(forwards)
        if self._passed_over and room < 1:  # a forward that fills a batch; now it is the runs' turn
            forwards, room = [], self._room_for_runs([])
        self._passed_over = room < 1 and self._runs.waits
        formed = self._runs.step(room)
        limits = self._limits
        users: set[str] = set()  # whose steps are in the plan
        self._newest = None
        if formed is not None:
            self._newest = formed.steps
            limits = limits.without(formed.steps.count)
            if forwards:
                users = {owner.user for owner in formed.steps.owners}
            self._add_steps(formed.steps, formed.embed, entries)
        if forwards:
            here = self._backlog.users
            forwards = self._policy.choose(forwards, limits, users, here)
            if forwards:
                self._send(forwards, entries)
        if formed is not None:
            self._add_steps(formed.steps, formed.forward, entries, bool(forwards))
            self._add_samples(formed.steps, formed.sample, entries)
        if forwards or formed is not None:
            self._add_light(entries)
        if not entries:
            self.riders = before
        return entries

    def further_steps(self, most: int) -> list[tuple[list[Entry], Again]]:
        """Further steps of the runs that are in the plan just formed, at most so many: of each, its
        three batches' entries, and what stands for them in the plan.

        None if something else waits. What is queued but held back may come along with the next
        step.
        """
        if self._newest is None or self.riders or not self._backlog.is_idle:
            return []
        found = []
        for steps, again in self._runs.further(self._newest, most):
            entries = [Entry([]) for _ in STEP]
            for entry, kind in zip(entries, STEP, strict=True):
                entry.add(steps, kind)
                self._figures.batch_sent(kind, steps.count, steps.count)
            found.append((entries, again))
        return found

    def _room_for_runs(self, forwards: list[ForwardCommand]) -> int:
        """How many steps of runs a batch takes, so that the forward that waits longest goes
        along.
        """
        limits = self._limits
        if not forwards:
            return min(limits.tokens, limits.commands)
        oldest = min(forwards, key=lambda command: (command.queue.rank[0], command.number))
        need = max(min(self._short, len(oldest.inputs)), oldest.first_piece)
        return min(limits.tokens - need, limits.commands - 1)

    def _enter_runs(self) -> None:
        """Takes in the runs that are the first in their queues now."""
        heads = self._backlog.heads[RunCommand]
        for queue in list(heads):
            run = cast(RunCommand, queue.pending[0])
            if run.over:
                self._backlog.run_is_over(run)
            elif not run.is_held_back():
                del heads[queue]
                self._runs.enter(run)
        self._backlog.retire()

    def _add_steps(
        self,
        steps: Steps,
        part: EmbedSampled | Forward | Sample,
        entries: list[Entry],
        to_last: bool = False,
    ) -> None:
        """Adds a part of steps to the last batch, which is of its kind, or as a batch of its
        own.
        """
        if not to_last:
            entries.append(Entry([]))
        entries[-1].add(steps, part.kind, part)
        self._figures.batch_sent(part.kind, steps.count, steps.count, new=not to_last)

    def _add_samples(self, steps: Steps, part: Sample, entries: list[Entry]) -> None:
        """Adds the choices of runs, and those of commands that can be made with them.

        Both in one batch: each batch of choices reads the whole vocabulary's weights.
        """
        limits = self._limits.without(steps.count)
        heads = self._backlog.heads[SampleCommand]
        commands = gather(heads, limits) if limits.commands > 0 else []
        if commands:
            self._send(cut(commands, limits), entries)
        self._add_steps(steps, part, entries, bool(commands))

    def _add_light(self, entries: list[Entry]) -> None:
        """Adds light batches until no queue has a light command first."""
        for _ in range(LIGHT_BATCHES):
            for kind in self._oldest_first(entries):
                commands = gather(self._backlog.heads[kind], self._limits)
                if commands:
                    self._send(cut(commands, self._limits), entries)
                    break
            else:
                return

    def _oldest_first(self, entries: list[Entry]) -> list[type[Command]]:
        """Light kinds that queues have first, the one whose command has waited longest first."""
        heads = self._backlog.heads
        waiting = [kind for kind in LIGHT_KINDS if heads[kind]]
        for kind in waiting:
            if kind.one_batch_a_plan and any(_is_of(entry, kind) for entry in entries):
                waiting = [other for other in waiting if other is not kind]
        if len(waiting) > 1:
            waiting.sort(key=lambda kind: min([q.pending[0].number for q in heads[kind]]))
        return waiting

    def _send(self, commands: Sequence[Command], entries: list[Entry]) -> None:
        """Takes the commands of a batch out of their queues and adds it to the plan."""
        kind = type(commands[0])
        entry = Entry(commands)
        queues: dict[CommandQueue, None] = {}
        ahead = kind.runs_ahead
        if ahead is not None:
            for command in commands:
                command.queue.ahead = ahead and not command.queue.is_idle
        for command in commands:
            queue = command.queue
            if command.is_part:
                self._figures.parts += 1
            else:
                queue.pending.popleft()
                if command.marks:
                    entry.marks += command.marks
            queue.last = entry
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
        self.riders.update(queues)
        entries.append(entry)
        self._figures.batch_sent(kind.kind, len(commands), kind.count_rows(commands))


def _is_of(entry: Entry, kind: type[Command]) -> bool:
    return bool(entry.commands) and type(entry.commands[0]) is kind
