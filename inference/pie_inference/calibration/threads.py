"""The number of threads of a decoding step on the CPU: the control process wants cores, too.

Control, programs and clients work for the next step beside this one. A team of threads on all cores
waits at every kernel for the one that they push aside, so that their work comes on top; with one
core less it costs nothing. So the last core is taken where it saves more time than they need.

Measured on two cores, tokens/s with one thread and with two: a tiny model, whose step gets faster
by 1.1 to 1.3 times, 151 and 168 of 1 program, 953 and 906 of 8, 2429 and 1836 of 32; a small one,
1.4 times faster, 234 and 303 of 8. On another machine, tiny, milliseconds a token with one and with
two: 3.5 and 4.5, 5.5 and 6.2, 11.0 and 10.8 of Rust programs; 12.2 and 15.5 of 32 Python programs.
Letting idle threads sleep sooner (GOMP_SPINCOUNT) made everything slower. Prompts get all threads:
control has little to do for each of their tokens. What other processes take meanwhile,
`shared_cores.py` finds out.

The steps that are measured have a context: on a machine where one thread takes long to attend, a
step of 32 without it was 1.25 times as fast with two threads, one in service 2 times (20 ms per
token in the place of 32).
"""

from __future__ import annotations

import sys
import time

import structlog
import torch

from pie_inference.calibration.shared_cores import SharedCores
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
