"""A plan that a GPU has been given and still computes, while the host goes on to the next."""

from __future__ import annotations

import torch

from pie_inference.device import DeviceFuture, passed
from pie_py.wire.plan import Batch, BatchResult, Plan, PlanResult
from pie_py.wire.steps import count_steps, steps_of


class Flight:
    """A plan under way. Its batches are handed over one after the other; then its results come.

    Its steps are handed over one by one, so that those that have not begun can be left out.
    """

    def __init__(
        self, plan: Plan, page_size: int, device: torch.device, before: Flight | None
    ) -> None:
        """Begins a plan, behind another one."""
        self.plan = plan
        self._steps = steps_of(plan, page_size)
        self._left = count_steps(plan)  # steps that have not begun
        self._ends: list[int] = []  # batches at the end of each step that has
        self._device = device
        self._long: list[bool] = []  # whether each batch is of a long kind
        self._pending: list[DeviceFuture[BatchResult]] = []
        self._marks = [self._mark()]  # on the device: the start, and each batch's end
        self._before = None if before is None else before._marks[-1]
        self._sent = 0

    @property
    def has_more(self) -> bool:
        """True if a step has not begun."""
        return self._left > 0

    @property
    def steps(self) -> int:
        """Steps that have begun and are not done."""
        return sum(end > self._sent and not self._done(end - 1) for end in self._ends)

    def next_step(self) -> list[Batch]:
        """The batches of the next step, which begins now."""
        step = next(self._steps)
        self._left -= 1
        self._ends.append(len(self._pending) + len(step))
        return step

    def cut(self) -> None:
        """Leaves out the steps that have not begun."""
        self._left = 0

    def add(self, long: bool, result: DeviceFuture[BatchResult]) -> None:
        """Takes what will become of the batch that has just been handed over."""
        self._long.append(long)
        self._pending.append(result)
        self._marks.append(self._mark())

    def take(self, wait: bool = False) -> PlanResult | None:
        """Results that have not been sent, if it is time to: the last ones, for which it may
        `wait`, or such as others wait for.
        """
        if wait:
            self._marks[-1].synchronize()
            return self._part(len(self._pending), last=True)
        ended = passed(self._marks[-1]) and all(
            later.ready for later in self._pending[self._sent :]
        )
        if ended and not self._left:
            return self._part(len(self._pending), last=True)
        ready = self._sent
        while ready < len(self._pending) and self._done(ready):
            ready += 1
        if not any(self._long[ready:]) and not self._left:
            return None  # the rest comes soon
        fresh = self._pending[self._sent : ready]
        if any(later.get().values is not None for later in fresh):
            return self._part(ready, last=False)
        return None

    def _done(self, number: int) -> bool:
        return passed(self._marks[number + 1]) and self._pending[number].ready

    def _part(self, end: int, last: bool) -> PlanResult:
        first, self._sent = self._sent, end
        results: list[BatchResult] = []
        for number in range(first, end):
            result = self._pending[number].get()
            result.nanoseconds = _between(self._marks[number], self._marks[number + 1])
            results.append(result)
        idle = 0
        if last and self._before is not None:
            idle = _between(self._before, self._marks[0])
        plan = self.plan
        return PlanResult(plan.id, plan.model, results, first, last=last, idle_ns=idle)

    def _mark(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def _between(first: torch.cuda.Event, second: torch.cuda.Event) -> int:
    return max(0, int(first.elapsed_time(second) * 1e6))
