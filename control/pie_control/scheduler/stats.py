"""Counters of a scheduler since its start."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pie_control.scheduler.backlog import KINDS
from pie_control.scheduler.commands.sample import SampleCommand
from pie_control.scheduler.runs import STEP


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
