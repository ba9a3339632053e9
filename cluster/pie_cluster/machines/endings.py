"""Why a process of a node has ended, as its operator reads it."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

from pie_py.config.processes import Child

END_SECONDS = 2.0  # for a process to end that has closed its standard output
LOOK_SECONDS = 0.01
COUNTS = Path("/proc/vmstat")


def memory_kills(counts: Path = COUNTS) -> int:
    """How many processes the kernel has killed on this machine because its memory, or that of a
    container, was full; 0 if it does not tell.
    """
    with suppress(OSError, ValueError):
        for line in counts.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def how_ended(child: Child, kills: int, counts: Path = COUNTS) -> str:
    """How a process has ended that said nothing of it.

    Args:
        child: it has closed its standard output, and is killed if it still runs.
        kills: the `memory_kills` before.
        counts: of the kernel.
    """
    end = time.monotonic() + END_SECONDS
    while child.status is None and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    if child.status is None:
        child.kill()
        return "closed its standard output, and was ended"
    status = child.kill()
    if status >= 0:
        return f"has ended with status {status}"
    name = signal.Signals(-status).name
    if status == -signal.SIGKILL and memory_kills(counts) > kills:
        return f"was killed by {name}, as others or it by the kernel, whose memory was full"
    return f"was killed by {name}"
