"""A measuring device, no model: a worker that waits for as long as a device might compute.

A batch of forwards takes `STEP` and a little for each input. As on a GPU, many sequences take
hardly longer than one, and no core is busy meanwhile.
"""

from __future__ import annotations

import time

from benchmarks import instant_worker
from pie_py.wire.plan import Batch, BatchResult, Forward

STEP = 0.015  # seconds of a batch of forwards
INPUT = 0.00002  # and of each of its inputs


def answer(batch: Batch) -> BatchResult:
    """The result of a batch, after its time."""
    result = instant_worker.answer(batch)
    if isinstance(batch, Forward):
        seconds = STEP + INPUT * len(batch.inputs)
        time.sleep(seconds)
        result.nanoseconds = int(seconds * 1e9)
    return result


if __name__ == "__main__":
    instant_worker.main(answer)
