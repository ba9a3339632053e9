"""A clock that divides a thread's time among named stages."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from pie_py.bench.observed import replace

MARKS = 50_000  # newest ones kept


class StageClock:
    """Divides a thread's time among stages, of which exactly one runs at every moment.

    So they add up to the time that has passed. The clock is Linux's monotonic one, the same in all
    processes of a machine.
    """

    def __init__(self, rest: str) -> None:
        """Takes the name of the time that is in no other stage."""
        self.stages = [rest]
        self._spent = [0]
        self._current = 0
        self.since = perf_counter_ns()  # when the stage that runs began, or went on
        self._marks: deque[tuple[str, int, int, int, list[int]]] = deque(maxlen=MARKS)

    def number(self, stage: str) -> int:
        """The number of a stage, which is added if it is new."""
        if stage not in self.stages:
            self.stages.append(stage)
            self._spent.append(0)
        return self.stages.index(stage)

    def enter(self, stage: int) -> int:
        """Ends the stage that runs and begins another; returns the number of the one that ran."""
        now = perf_counter_ns()
        ran = self._current
        self._spent[ran] += now - self.since
        self.since = now
        self._current = stage
        return ran

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose time is the stage's, less what stages within it take."""
        number = self.number(stage)
        enter = self.enter

        def run(*args: Any, **options: Any) -> Any:
            outer = enter(number)
            try:
                return function(*args, **options)
            finally:
                enter(outer)

        return run

    def mark(self, event: str, plan: int, tokens: int = 0, at: int | None = None) -> None:
        """Notes an event of a plan, when it was, and what each stage has taken so far."""
        now = perf_counter_ns()
        spent = self._spent.copy()
        spent[self._current] += now - self.since
        self._marks.append((event, plan, now if at is None else at, tokens, spent))

    @contextmanager
    def writing(self, file: Path) -> Iterator[None]:
        """Writes all marks at its end."""
        try:
            yield
        finally:
            for *_, spent in self._marks:  # stages that came later had taken nothing by then
                spent += [0] * (len(self.stages) - len(spent))
            file.write_text(json.dumps({"stages": self.stages, "marks": list(self._marks)}))


@dataclass(frozen=True)
class Tap:
    """A public function of a module or class whose time is a stage's."""

    stage: str
    owner: Any
    name: str

    def time(self, clock: StageClock) -> None:
        """Has the clock run in this stage while the function runs.

        Raises:
            AttributeError: if there is no such function.
            ValueError: if it is private.
        """
        replace(self.owner, self.name, lambda function: clock.timed(self.stage, function))
