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
from pie_control.commands.kinds import KINDS
from pie_control.commands.queue import CommandQueue
from pie_control.scheduler.backlog import Backlog
from pie_control.scheduler.batching import cut, gather
from pie_control.scheduler.entry import Entry
from pie_control.scheduler.figures import Figures
from pie_control.scheduler.prompt_parts import share

# A plan holds at most this many light batches before and after its forward batch, so that its
# length stays that of one step whatever a single queue asks for.
LIGHT_BATCHES = 8
LIGHT_KINDS = [kind for kind in KINDS if kind.is_light]


class PlanForming:
    """Takes commands out of the backlog, batch by batch."""

    def __init__(
        self, backlog: Backlog, limits: BatchLimits, page_size: int, figures: Figures
    ) -> None:
        self._backlog = backlog
        self._limits = limits
        self._page_size = page_size
        self._figures = figures
        # Queues with commands in the newest plan; a plan without any leaves them as they were.
        self.riders: dict[CommandQueue, None] = {}

    def form(self) -> list[Entry]:
        """The batches of a plan; none if nothing can be sent."""
        before, self.riders = self.riders, {}
        entries: list[Entry] = []
        self._add_light(entries)
        heads = self._backlog.heads[ForwardCommand]
        if heads and (forwards := cast(list[ForwardCommand], gather(heads, self._limits))):
            self._send(share(forwards, self._limits, self._page_size), entries)
            self._add_light(entries)
        if not entries:
            self.riders = before
        return entries

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
