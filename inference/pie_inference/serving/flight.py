"""A plan that a GPU has been given and still computes, while the host goes on to the next."""

from __future__ import annotations

import torch

from pie_inference.device.fence import passed
from pie_inference.device.future import DeviceFuture
from pie_py.wire.plan import BatchResult, PlanResult


def has_values(result: BatchResult) -> bool:
    """Whether a program may wait for values in this result, not only for its batch to end."""
    return not (
        result.samples is None and result.distributions is None and result.attention is None
    )


class Flight:
    """A plan under way. Its batches are handed over one after the other; then its results come."""

    def __init__(self, id: int, model: str, device: torch.device, before: Flight | None) -> None:  # noqa: A002
        """Begins a plan, behind another one."""
        self._id = id
        self._model = model
        self._device = device
        self._long: list[bool] = []  # whether each batch is of a long kind
        self._pending: list[DeviceFuture[BatchResult]] = []
        self._marks = [self._mark()]  # on the device: the start, and each batch's end
        self._before = None if before is None else before._marks[-1]
        self._told = 0

    def add(self, long: bool, result: DeviceFuture[BatchResult]) -> None:
        """Takes what will become of the batch that has just been handed over."""
        self._long.append(long)
        self._pending.append(result)
        self._marks.append(self._mark())

    def take(self, wait: bool = False) -> PlanResult | None:
        """Results that have not been told, if it is time to: the last ones, or such as others wait
        for.

        Args:
            wait: for the last ones.
        """
        if wait:
            self._marks[-1].synchronize()
            return self._part(len(self._pending), last=True)
        if passed(self._marks[-1]) and all(later.ready for later in self._pending[self._told :]):
            return self._part(len(self._pending), last=True)
        ready = self._told
        while ready < len(self._pending) and self._done(ready):
            ready += 1
        if not any(self._long[ready:]):
            return None  # the rest comes soon
        fresh = self._pending[self._told : ready]
        if any(has_values(later.get()) for later in fresh):
            return self._part(ready, last=False)
        return None

    def _done(self, number: int) -> bool:
        return passed(self._marks[number + 1]) and self._pending[number].ready

    def _part(self, end: int, last: bool) -> PlanResult:
        first, self._told = self._told, end
        results: list[BatchResult] = []
        for number in range(first, end):
            result = self._pending[number].get()
            result.nanoseconds = _between(self._marks[number], self._marks[number + 1])
            results.append(result)
        idle = 0
        if last and self._before is not None:
            idle = _between(self._before, self._marks[0])
        return PlanResult(self._id, self._model, results, first, last=last, idle_ns=idle)

    def _mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def _between(first: torch.cuda.Event, second: torch.cuda.Event) -> int:
    return max(0, int(first.elapsed_time(second) * 1e6))
