"""The CPU time of other processes, by /proc: what limits count on a machine that is busy."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class GroupTime:
    """Looks at the processes of a group."""

    def __init__(self, group: int) -> None:
        """Takes the group's number."""
        self._group = group
        self.used = 0.0  # seconds of the CPU, at the last look

    def goes_on(self) -> bool:
        """True if the group has used a CPU since the last look, or waits for one or for a disk."""
        used, waits = 0.0, False
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                state, _, group, *rest = file.read_text().rpartition(")")[2].split()
                if int(group) == self._group:
                    used += sum(map(int, rest[8:12])) / _TICKS
                    waits = waits or state in "RDTt"
        before, self.used = self.used, used
        return waits or used > before
