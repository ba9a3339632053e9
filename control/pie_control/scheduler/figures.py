"""What a scheduler counts since its start."""

from __future__ import annotations

from typing import Any

from pie_control.scheduler.backlog import KINDS
from pie_py.wire.plan import EmbedSampled, Forward, Sample


class Figures:
    """Counters of one model's plans."""

    __slots__ = (
        "_batches",
        "_commands",
        "_followed",
        "_idle_ns",
        "_longest_idle_ns",
        "_plans_ahead",
        "_rows",
        "_steps_left_out",
        "further_steps",
        "parts",
        "plans",
        "worker_ns",
    )

    def __init__(self) -> None:
        self.plans = 0
        self.parts = 0  # of forwards that were cut, without the last of each
        self.further_steps = 0  # of plans, behind the first
        self._steps_left_out = 0  # of these, by plans that were cut
        self.worker_ns = 0  # that batches took
        self._commands = {kind.kind: 0 for kind in KINDS}
        self._batches = {kind.kind: 0 for kind in KINDS}
        self._rows = 0
        self._plans_ahead = 0  # sent while another one was at the worker
        self._followed = 0  # plans that continue the one before
        self._idle_ns = 0  # how long the worker waited for these
        self._longest_idle_ns = 0

    def batch_sent(self, kind: str, commands: int, rows: int, *, new: bool = True) -> None:
        """Counts a batch of a plan, or what one has in addition to what was counted."""
        self._commands[kind] += commands
        self._batches[kind] += new
        self._rows += rows

    def step_left_out(self, count: int) -> None:
        """Takes back a step of so many runs, which is not run."""
        self._steps_left_out += 1
        for kind in (EmbedSampled.kind, Forward.kind, Sample.kind):
            self._commands[kind] -= count
            self._batches[kind] -= 1
            self._rows -= count

    def plan_sent(self, ahead: bool) -> None:
        """Counts a plan; `ahead` of the results of another one."""
        self.plans += 1
        self._plans_ahead += ahead

    def plan_followed(self, idle_ns: int) -> None:
        """Counts how long the worker waited for a plan that continues the one before."""
        self._followed += 1
        self._idle_ns += idle_ns
        self._longest_idle_ns = max(self._longest_idle_ns, idle_ns)

    def told(self) -> dict[str, Any]:
        """All of them, by name."""
        return {
            "plans": self.plans,
            "plans_ahead": self._plans_ahead,
            "parts": self.parts,
            "further_steps": self.further_steps,
            "steps_left_out": self._steps_left_out,
            "batches": dict(self._batches),
            "commands": dict(self._commands),
            "rows": self._rows,
            "worker_ns": self.worker_ns,
            "plans_followed": self._followed,
            "worker_idle_ns": self._idle_ns,
            "worker_idle_longest_ns": self._longest_idle_ns,
        }
