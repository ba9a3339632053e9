"""How many threads a forward on the CPU gets, where the control process wants cores, too.

Control, programs and clients work for the next step beside this one. A team of threads on all cores waits
at every kernel for the one that they push aside, so that their work comes on top; with one core less it
costs nothing. So the last core is taken where it saves more time than they need.

Measured on two cores, tokens/s with one thread and with two: a tiny model, whose step gets faster by 1.1
to 1.3 times, 151 and 168 of 1 program, 953 and 906 of 8, 2429 and 1836 of 32; a small one, 1.4 times
faster, 234 and 303 of 8. Letting idle threads sleep sooner (GOMP_SPINCOUNT) made everything slower.
"""

from __future__ import annotations

import time

import structlog
import torch

from pie_inference.served_model import ServedModel
from pie_inference.trial import run_trial

log = structlog.get_logger("pie.worker")

SECONDS = 0.5  # after this long only what is under way is measured
REPEATS = 3  # the fastest counts
SIZES = (1, 8, 32, 128)  # sequences that decode
# Work beside a step: of control for each, and of control, programs and clients for each token.
STEP_SECONDS = 200e-6
TOKEN_SECONDS = 120e-6


class Threads:
    """A number of threads for each number of inputs."""

    def __init__(self, most: int, fewer: dict[int, int] | None = None) -> None:
        """Takes numbers for up to so many inputs, ascending; larger forwards get the most."""
        self._most = most
        self._fewer = fewer or {}

    def use(self, inputs: int) -> None:
        """Lets PyTorch compute with the threads for a forward of so many inputs."""
        for size, threads in self._fewer.items():
            if inputs <= size:
                torch.set_num_threads(threads)
                return
        torch.set_num_threads(self._most)


def measured(model: ServedModel) -> Threads:
    """The fewest threads that are worth it, of a model on the CPU whose pools nobody uses yet."""
    most = torch.get_num_threads()
    limit = min(model.description.max_batch_tokens, model.embeds.size)
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
    return Threads(most, found)


def _times(model: ServedModel, size: int, counts: list[int], end: float) -> dict[int, float]:
    """Seconds of a step of so many sequences, by threads, measured in turns."""
    times = dict.fromkeys(counts, float("inf"))
    run_trial(model, [1] * size, k=1)  # memory of this size is mapped the first time
    for _ in range(REPEATS):
        for count in counts:
            torch.set_num_threads(count)
            start = time.perf_counter()
            run_trial(model, [1] * size, k=1)
            times[count] = min(times[count], time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return times
