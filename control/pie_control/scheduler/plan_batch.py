"""One batch of a plan: from its commands to the marks that wait for its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from pie_control.scheduler.commands.command import Command, Mark, QueueOwner
from pie_control.scheduler.commands.forward import NO_ADAPTER, NO_SAMPLER
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
