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

The steps that are measured have a context: on a machine where one thread takes long to attend, a
step of 32 without it was 1.25 times as fast with two threads, one in service 2 times (20 ms per
token in the place of 32).

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
from collections.abc import Callable

import structlog
import torch

from pie_inference.calibration.trial import run_step
from pie_inference.handlers.base import ServedModel

log = structlog.get_logger("pie.worker")

# What is chosen stays for the server's life, and right after loading single steps take twice as
# long as later ones: with three of each, eight starts made seven different choices (tiny, 8
# sequences: 10.0 and 5.2 ms; 3.9 and 3.2 in the end).
SECONDS = 1.6  # after this long only what is under way is measured
REPEATS = 10  # the fastest counts; fewer of steps that take long, but not less than LEAST
LEAST = 3
# Sequences that decode. More are treated as the last: what threads save and what control needs grow
# alike.
SIZES = (1, 8, 32)
MANY = sys.maxsize
STEP = 4  # inputs of a sequence, at most, in a forward that is a step of decoding
# Tokens of each: attending to them gains most from threads where few of them share a core.
CONTEXT = 96
CONTEXT_BYTES = 64 << 20  # keys and values of all, at most: steps keep copies of them
# Work beside a step: of control for each, and of control, programs and clients for each token.
STEP_SECONDS = 200e-6
TOKEN_SECONDS = 120e-6

TASKS = "/proc/self/task"

LOOK_SECONDS = 2e-3  # between two looks, which cost some 20 µs each
WINDOW_SECONDS = 0.05  # of computing together, after which it is judged
MOST_WAITED = 0.4  # of a window, by all threads together
LEAST_ALONE, MOST_ALONE = 0.1, 0.5  # seconds


class Threads:
    """A number of threads for each forward."""

    def __init__(
        self, most: int, fewer: dict[int, int] | None = None, cores: SharedCores | None = None
    ) -> None:
        """Takes the number for prompts, and those for steps of up to so many inputs, ascending;
        larger steps get as many as prompts. With `cores`, one computes alone while others are busy.
        """
        self._most = most
        self._fewer = fewer or {}
        self._cores = cores
        self._used = most

    def use(self, inputs: int, sequences: int) -> None:
        """Lets PyTorch compute with the threads for a forward of so many inputs and sequences."""
        wanted = self._most
        if inputs <= STEP * sequences:
            steps = (threads for size, threads in self._fewer.items() if inputs <= size)
            wanted = next(steps, wanted)
        self._used = wanted if self._cores is None else self._cores.allowed(wanted)
        torch.set_num_threads(self._used)

    def between_layers(self) -> None:
        """Goes on with one thread if other processes have taken the cores of this forward's."""
        if self._used > 1 and self._cores is not None and self._cores.are_taken():
            self._used = 1
            torch.set_num_threads(1)


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


def measured(model: ServedModel) -> Threads:
    """The fewest threads that are worth it, of a model on the CPU that does not serve yet."""
    most = torch.get_num_threads()
    limit = min(model.description.max_batch_tokens, model.embeds.size, model.cache.pages)
    counts = [1 << i for i in range(most.bit_length()) if 1 << i < most - 1]
    counts += [most - 1, most] if most > 1 else []
    end = time.perf_counter() + SECONDS
    found: dict[int, int] = {}
    with torch.inference_mode():
        for size in SIZES if counts else ():
            if size > limit or time.perf_counter() > end:
                break
            times = _times(model, size, counts, end)
            few = min(counts[:-1], key=times.__getitem__)
            beside = STEP_SECONDS + size * TOKEN_SECONDS
            found[size] = few if times[few] <= times[most] + beside else most
    torch.set_num_threads(most)
    log.info(
        "threads of decoding steps, by sequences",
        model=model.description.name,
        **{str(size): threads for size, threads in found.items()},
    )
    if SIZES[-1] in found:
        found[MANY] = found[SIZES[-1]]
    return Threads(most, found, SharedCores())


def _times(model: ServedModel, size: int, counts: list[int], end: float) -> dict[int, float]:
    """Seconds of a step of so many sequences, by threads, measured in turns."""
    times = dict.fromkeys(counts, float("inf"))
    context = _context(model, size)
    # Makes ready what the others find, as the steps of a generation do.
    run_step(model, size, context - 1)
    share = time.perf_counter() + SECONDS / len(SIZES)
    for repeat in range(1, REPEATS + 1):
        for count in counts:
            torch.set_num_threads(count)
            start = time.perf_counter()
            run_step(model, size, context)
            times[count] = min(times[count], time.perf_counter() - start)
        if repeat >= LEAST and time.perf_counter() > min(share, end):
            break
    return times


def _context(model: ServedModel, size: int) -> int:
    """Tokens before the input of each of so many sequences, no more than there are pages."""
    cache = model.cache
    share = cache.pages // size * cache.page_size
    affordable = CONTEXT_BYTES // (size * cache.data[:, 0].numel() * cache.data.itemsize)
    return max(2, min(CONTEXT, share - 1, affordable, model.network.shape.max_position - 1))
