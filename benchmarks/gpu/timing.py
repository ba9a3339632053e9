"""Times on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch


def seconds_of(run: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """Median seconds of a run on the device, from its own events, after two that do not count."""
    for _ in range(2):
        run()
    if device.type != "cuda":
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return median(times)
    marks = []
    for _ in range(repeats):
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        pair[0].record(torch.cuda.current_stream(device))
        run()
        pair[1].record(torch.cuda.current_stream(device))
        marks.append(pair)
    torch.cuda.synchronize(device)
    return median(float(first.elapsed_time(second)) / 1e3 for first, second in marks)


def settle(device: torch.device) -> None:
    """Waits until the device has nothing to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
