"""How a Python process is started by another, and when it is started again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


def python_command(*arguments: str) -> list[str]:
    """The command of a child that runs this Python, such as `python_command("-m", "pie_control")`.

    All children are started by it. Without `-P`, `-m` and `-c` import from the folder one stands in
    before the standard library: a user's `random.py` there would stop the server, and a stranger's
    would run in it. PYTHONPATH, which a user sets on purpose, still counts.
    """
    return [sys.executable, "-P", *arguments]


class Backoff:
    """The pauses before a process that has ended is started again.

    The first is short, each further one twice as long, up to a bound. After a process that has
    lived for long the next pause is the first one again.
    """

    FIRST_SECONDS = 0.5
    MOST_SECONDS = 30.0
    WELL_SECONDS = 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Takes the clock, in seconds. The process starts now."""
        self._clock = clock
        self._next = self.FIRST_SECONDS
        self.start()

    def start(self) -> None:
        """The process starts now."""
        self._started = self._clock()

    def pause(self) -> float:
        """The process has ended: seconds until it may start again."""
        if self._clock() - self._started > self.WELL_SECONDS:
            self._next = self.FIRST_SECONDS
        pause, self._next = self._next, min(2 * self._next, self.MOST_SECONDS)
        return pause
