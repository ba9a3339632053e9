"""The number of threads that compute while other processes want the cores, too.

PyTorch's threads meet at the end of every kernel. If another process runs on the core of one of
them, all wait for it there, for the 3 ms of a turn of the system's scheduler, though a kernel takes
20 µs. Measured on two cores beside one process that computes: 32 programs of a tiny model make
1 100 tokens per second with one thread and 130 with two.

So the threads look, now and then between two layers, how long they have waited for a core. If that
is much over a while, one computes alone, and the others are tried again later, the later the more
often that goes wrong. Control's own work between two steps is no reason: it is there all the time,
and short.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

TASKS = "/proc/self/task"

LOOK_SECONDS = 2e-3  # between two looks, which cost some 20 µs each
WINDOW_SECONDS = 0.05  # of computing together, after which it is judged
MOST_WAITED = 0.4  # of a window, by all threads together
LEAST_ALONE, MOST_ALONE = 0.1, 0.5  # seconds


class SharedCores:
    """Watches the threads of this process."""

    def __init__(
        self,
        waited: Callable[[bool], float] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Takes a count of the seconds that the threads have waited for cores, and a clock.

        `waited` gets whether a forward begins.
        """
        self._waited = waited or RunQueues().waited
        self._clock = clock
        self._seen = 0.0  # the last look, and what they had waited until then
        self._seen_waited = 0.0
        self._together = 0.0  # seconds of this window, and what they have waited in it
        self._waiting = 0.0
        self._alone = LEAST_ALONE
        self._alone_until = 0.0

    def allowed(self, threads: int) -> int:
        """How many of these threads a forward begins with."""
        if threads == 1:
            return 1
        now = self._clock()
        if now < self._alone_until:
            return 1
        self._seen, self._seen_waited = now, self._waited(True)
        return threads

    def are_taken(self) -> bool:
        """Whether the threads of the forward have waited too long, and one is to go on alone."""
        now = self._clock()
        if now - self._seen < LOOK_SECONDS:
            return False
        waited = self._waited(False)
        self._together += now - self._seen
        self._waiting += waited - self._seen_waited
        self._seen, self._seen_waited = now, waited
        if self._together < WINDOW_SECONDS:
            return False
        taken = self._waiting > MOST_WAITED * self._together
        self._together = self._waiting = 0.0
        if taken:
            self._alone_until = now + self._alone
            self._alone = min(2 * self._alone, MOST_ALONE)
        else:
            self._alone = LEAST_ALONE
        return taken


class RunQueues:
    """Each thread's time in the queues of Linux's scheduler.

    Elsewhere, and where the kernel does not count it, the threads never seem to wait.
    """

    def __init__(self) -> None:
        """Looks at no thread yet."""
        self._files: dict[str, int] = {}

    def waited(self, look_for_threads: bool) -> float:
        """Seconds that the threads of this process, all together, have waited for a core so far.
        There may be new ones since the last time if it is to `look_for_threads`.
        """
        if look_for_threads:
            self._open()
        total = 0
        for task, file in list(self._files.items()):
            try:
                total += int(os.pread(file, 64, 0).split()[1])
            except OSError:  # the thread has ended
                os.close(self._files.pop(task))
        return total / 1e9

    def _open(self) -> None:
        try:
            for task in os.listdir(TASKS):
                if task not in self._files:
                    self._files[task] = os.open(f"{TASKS}/{task}/schedstat", os.O_RDONLY)
        except OSError:
            self.close()

    def close(self) -> None:
        """Closes the files."""
        while self._files:
            os.close(self._files.popitem()[1])
