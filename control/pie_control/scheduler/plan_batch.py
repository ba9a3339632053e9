"""One batch of a plan: from its commands to the marks that wait for its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pie_control.scheduler.commands.command import NOTHING, Command, Mark, QueueOwner
from pie_control.scheduler.commands.forward import NO_ADAPTER, NO_SAMPLER, ForwardCommand
from pie_control.scheduler.commands.pages import SwapInCommand, SwapOutCommand
from pie_control.scheduler.runs import Steps
from pie_py.wire.plan import Batch, EmbedSampled, Forward, Int32, Sample, SwapIn, SwapOut


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

    @property
    def prompts(self) -> list[tuple[int, int]]:
        """Of each forward of more than one input, the slots before its inputs, and these."""
        found = [c for c in self.commands if isinstance(c, ForwardCommand) and len(c.inputs) > 1]
        return [(int(command.page_used.sum()), len(command.inputs)) for command in found]

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
            if (timeline := command.queue.owner.timeline) is not None:
                timeline.add(span)
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


def joined(commands: Batch, steps: EmbedSampled | Forward | Sample) -> Batch:
    """One batch of a batch of commands and of one of the same kind of runs, in this order."""
    match commands, steps:
        case EmbedSampled() as first, EmbedSampled() as second:
            return EmbedSampled(
                np.concatenate([first.samplers, second.samplers]),
                np.concatenate([first.positions, second.positions]),
                np.concatenate([first.embeds, second.embeds]),
            )
        case Sample() as first, Sample() as second:
            return Sample(
                np.concatenate([first.embeds, second.embeds]),
                np.concatenate([first.samplers, second.samplers]),
                np.concatenate([first.steps, second.steps]),
                np.concatenate([first.top, second.top]),
                np.concatenate([first.masked, second.masked]),
                first.masks,
                _mixed(first.mixed, second.samplers.size),
                _drafts(first.samplers.size, second.drafts),
            )
        case Forward() as first, Forward() as second:
            return _joined_forwards(first, second)
    raise TypeError(f"{commands.kind} and {steps.kind} are not one batch")


def _joined_forwards(first: Forward, second: Forward) -> Forward:
    before, after = first.has_masked.size, second.has_masked.size

    def each(one: Int32, two: Int32, absent: int) -> Int32:
        if not one.size and not two.size:
            return NOTHING
        parts = (one, before), (two, after)
        filled = [part if part.size else np.full(n, absent, np.int32) for part, n in parts]
        return np.concatenate(filled)

    return Forward(
        input_starts=_starts(first.input_starts, second.input_starts),
        inputs=np.concatenate([first.inputs, second.inputs]),
        page_starts=_starts(first.page_starts, second.page_starts),
        pages=np.concatenate([first.pages, second.pages]),
        page_used=np.concatenate([first.page_used, second.page_used]),
        has_masked=np.concatenate([first.has_masked, second.has_masked]),
        output_slots=np.concatenate([first.output_slots, second.output_slots]),
        output_starts=_starts(first.output_starts, second.output_starts),
        outputs=np.concatenate([first.outputs, second.outputs]),
        mask_starts=_starts(first.mask_starts, second.mask_starts),
        mask=np.concatenate([first.mask, second.mask]),
        adapters=each(first.adapters, second.adapters, NO_ADAPTER),
        observed=each(first.observed, second.observed, 0),
        detail=each(first.detail, second.detail, 0),
        attends=each(first.attends, second.attends, NO_SAMPLER),
        attend_steps=each(first.attend_steps, second.attend_steps, 0),
    )


def _mixed(first: Int32, runs: int) -> Int32:
    """What commands mix in, and so many runs, which mix nothing in."""
    return np.pad(first, ((0, runs), (0, 0)), constant_values=-1) if first.size else NOTHING


def _drafts(commands: int, runs: Int32) -> Int32:
    """What is guessed of runs, behind so many commands, of which nothing is."""
    return np.pad(runs, (commands, 0), constant_values=-1) if runs.size else NOTHING


def _starts(first: Int32, second: Int32) -> Int32:
    """Offsets of both, one after the other."""
    return np.concatenate([first, second[1:] + first[-1]])
