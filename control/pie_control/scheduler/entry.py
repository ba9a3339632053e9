"""A batch on its way: from its commands to the marks that wait for its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pie_control.commands.command import Command, Mark
from pie_control.commands.queue import Owner
from pie_control.scheduler.joining import joined
from pie_control.scheduler.runs import Steps
from pie_py.wire.plan import Batch, BatchResult, EmbedSampled, Forward, Sample


class Entry:
    """One batch of a plan, from the forming of the plan to its results."""

    __slots__ = ("_kind", "_part", "_ready", "commands", "done", "failed", "marks", "steps")

    def __init__(
        self,
        commands: Sequence[Command],
        ready: Batch | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """Takes commands of one kind; or none, with a batch and a callback for its failure; or
        none, for steps that are added.
        """
        self.commands = commands
        self.marks: list[Mark] = []  # that stand in queues right behind the commands
        self.failed = failed
        self.done = False
        self._ready = ready
        self.steps: Steps | None = None  # of runs, behind the commands
        self._kind = ""  # of their batch
        self._part: EmbedSampled | Forward | Sample | None = None

    def add(
        self, steps: Steps, kind: str, part: EmbedSampled | Forward | Sample | None = None
    ) -> None:
        """Adds what steps of runs have of a kind of batch; None if an `Again` stands for it."""
        self.steps = steps
        self._kind = kind
        self._part = part

    @property
    def kind(self) -> str:
        """The batch's."""
        if self.commands:
            return self.commands[0].kind
        return self._kind if self._ready is None else self._ready.kind

    @property
    def owners(self) -> list[Owner]:
        """Whose commands it has; of the batches of a run's step its forward alone tells."""
        found = [command.queue.owner for command in self.commands]
        if self.steps is not None and self._kind == Forward.kind:
            found += self.steps.owners
        return found

    def running(self) -> set[str]:
        """The users of the runs that have a step in it."""
        return set() if self.steps is None else {owner.user for owner in self.steps.owners}

    def note_times(self, sent_ns: int, now_ns: int, device_ns: int) -> None:
        """Notes the batch in the time lines of its instances; of the batches of a run's step its
        forward alone, once its token comes.

        Args:
            sent_ns: when its plan was sent.
            now_ns: when its results have come.
            device_ns: that it took at the worker.
        """
        steps = self.steps if self._kind == Forward.kind else None
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
        if self._ready is not None:
            return self._ready
        if self._part is None:
            return self.commands[0].join(self.commands)
        if not self.commands:
            return self._part
        return joined(self.commands[0].join(self.commands), self._part)

    def answered(self, answer: BatchResult) -> None:
        """Gives the steps their results."""
        if self.steps is not None:
            self.steps.answered(self._kind, answer, len(self.commands))

    def finish(self) -> None:
        """Tells the marks, and forgets what the entry held: its queues keep it for longer."""
        self.done = True
        for mark in self.marks:
            mark.passed()
        self.commands, self.marks = (), []
        self._ready = self._part = self.steps = None
