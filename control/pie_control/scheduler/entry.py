"""A batch on its way: from its commands to the marks that wait for its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pie_control.commands.command import Command, Mark
from pie_py.wire.plan import Batch


class Entry:
    """One batch of a plan, from the forming of the plan to its results."""

    __slots__ = ("_ready", "commands", "done", "failed", "marks")

    def __init__(
        self,
        commands: Sequence[Command],
        ready: Batch | None = None,
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """Takes commands of one kind; or none, with a batch and a callback for its failure."""
        self.commands = commands
        self.marks: list[Mark] = []  # that stand in queues right behind the commands
        self.failed = failed
        self.done = False
        self._ready = ready

    def join(self) -> Batch:
        """The batch for the worker."""
        if self._ready is not None:
            return self._ready
        return self.commands[0].join(self.commands)

    def finish(self) -> None:
        """Tells the marks, and forgets what the entry held: its queues keep it for longer."""
        self.done = True
        for mark in self.marks:
            mark.passed()
        self.commands, self.marks = (), []
        self._ready = None
