"""The number of threads of a decoding step on the CPU: the control process wants cores, too.

Control, programs and clients work for the next step beside this one. A team of threads on all cores
waits at every kernel for the one that they push aside, so that their work comes on top; with one
core less it costs nothing. So the last core is taken where it saves more time than they need.

Measured on two cores, tokens/s with one thread and with two: a tiny model, whose step gets faster
by 1.1 to 1.3 times, 151 and 168 of 1 program, 953 and 906 of 8, 2429 and 1836 of 32; a small one,
1.4 times faster, 234 and 303 of 8. On another machine, tiny, milliseconds a token with one and with
two: 3.5 and 4.5, 5.5 and 6.2, 11.0 and 10.8 of Rust programs; 12.2 and 15.5 of 32 Python programs.
Letting idle threads sleep sooner (GOMP_SPINCOUNT) made everything slower. Prompts get all threads:
control has little to do for each of their tokens.

Steps that programs want are measured, not such as are made for it: those take seconds of the start
and lack contexts. On a machine where one thread takes long to attend, a step of 32 without them was
1.25 times as fast with two threads, one in service 2 times. They are measured again now and then,
some twenty steps a minute: what is found beside a build, or another server, is wrong without it.

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
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
import torch

from pie_py.config.platform import PROC

log = structlog.get_logger("pie.worker")

# Pairs of steps, with more threads and with fewer, of which the fastest of each count: with three,
# eight starts made seven different choices.
REPEATS = 8
FIRST = 4  # steps that do not count: right after loading they take twice as long as later ones
# Inputs up to which steps are treated alike.
SIZES = (1, 8, 32, sys.maxsize)
STEP = 4  # inputs of a sequence, at most, in a forward that is a step of decoding
# Work beside a step: of control for each, and of control, programs and clients for each token.
STEP_SECONDS = 200e-6
TOKEN_SECONDS = 120e-6

AGAIN_SECONDS = 60.0  # from one choice to the next

TASKS = f"{PROC}/self/task"

LOOK_SECONDS = 2e-3  # between two looks, which cost some 20 µs each
WINDOW_SECONDS = 0.05  # of computing together, after which it is judged
MOST_WAITED = 0.4  # of a window, by all threads together
LEAST_ALONE, MOST_ALONE = 0.1, 0.5  # seconds


@contextmanager
def one_thread() -> Iterator[None]:
    """Other processes of a start take the cores meanwhile, and PyTorch's threads would wait for one
    of them at every tensor: `pie-tiny` took 27 ms of CPU time with one thread, and up to 1 s with
    two.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Threads:
    """A number of threads for each forward. Which is best for a step of decoding is found on the
    first steps that are wanted.
    """

    def __init__(
        self,
        most: int,
        cores: SharedCores | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the number for prompts. With `cores`, steps may get fewer, and one thread computes
        alone while other processes are busy; without, they get as many as prompts.
        """
        self._most = most
        self._cores = cores
        self._clock = clock
        self._found: dict[int, int] = {}  # by the size of steps
        self._old_at: dict[int, float] = {}  # likewise: when it is to be found again
        self._trials: dict[int, Trial] = {}  # by size
        self._used = most
        self._tried: tuple[int, int] | None = None  # size and threads, if this forward counts

    def use(self, inputs: int, sequences: int) -> None:
        """Lets PyTorch compute with the threads for a forward of so many inputs and sequences."""
        wanted, self._tried = self._most, None
        if inputs <= STEP * sequences:
            size = next(size for size in SIZES if inputs <= size)
            wanted = self._found.get(size, wanted)
            is_old = self._clock() >= self._old_at.get(size, 0.0)
            if self._cores is not None and is_old and self._most > 1:
                trial = self._trial(size, inputs)
                if trial is not None:
                    wanted = trial.next
                    self._tried = size, wanted
        self._used = wanted if self._cores is None else self._cores.allowed(wanted)
        torch.set_num_threads(self._used)

    def between_layers(self) -> None:
        """Goes on with one thread if other processes have taken the cores of this forward's."""
        if self._used > 1 and self._cores is not None and self._cores.are_taken():
            self._used = 1
            torch.set_num_threads(1)

    def took(self, seconds: float) -> None:
        """Says how long the forward has taken."""
        if self._tried is None or self._tried[1] != self._used:  # others have taken the cores
            return
        size = self._tried[0]
        trial = self._trials[size]
        trial.took(seconds)
        if trial.chosen is not None:
            if trial.chosen != self._found.get(size):
                log.info("threads of decoding steps", up_to=size, threads=trial.chosen)
            self._found[size] = trial.chosen
            self._old_at[size] = self._clock() + AGAIN_SECONDS
            del self._trials[size]

    def _trial(self, size: int, inputs: int) -> Trial | None:
        """The trial of a step. Only steps of one number of inputs can be compared: where that
        changes, what was found stays for now, and without that a trial begins again.
        """
        trial = self._trials.get(size)
        if trial is not None and trial.inputs == inputs:
            return trial
        if trial is not None and size in self._found:
            del self._trials[size]
            self._old_at[size] = self._clock() + AGAIN_SECONDS
            return None
        self._trials[size] = Trial(inputs, self._most)
        return self._trials[size]


class Trial:
    """Steps of as many inputs, in turns with all threads and with fewer: the fewer the better, as
    long as each number is faster than the one before.
    """

    def __init__(self, inputs: int, most: int) -> None:
        """Nothing is measured yet; there are at least two threads."""
        self.inputs = inputs
        self.chosen: int | None = None
        self._most = most
        self._fewer = [1 << i for i in range(most.bit_length()) if 1 << i < most - 1]  # to try
        self._fewest = self._best = most - 1  # that is tried; the fastest so far
        self._times: dict[int, float] = {}
        self._steps = -FIRST

    @property
    def next(self) -> int:
        """Threads of the next step."""
        return self._fewest if self._steps > 0 and self._steps % 2 else self._most

    def took(self, seconds: float) -> None:
        """Says how long that step has taken."""
        if self._steps >= 0:
            self._times[self.next] = min(seconds, self._times.get(self.next, seconds))
        self._steps += 1
        if self._steps < 2 * REPEATS:
            return
        faster = self._times[self._fewest] <= self._times[self._best]
        if faster:
            self._best = self._fewest
        if faster and self._fewer:
            self._fewest, self._steps = self._fewer.pop(), 0
            return
        beside = STEP_SECONDS + self.inputs * TOKEN_SECONDS
        worth_it = self._times[self._best] > self._times[self._most] + beside
        self.chosen = self._most if worth_it else self._best


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
        """True if the threads of the forward have waited too long, and one is to go on alone."""
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
