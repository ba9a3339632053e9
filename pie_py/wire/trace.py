"""Where the time of a thread goes, or what it calls: records that both processes keep for benchmarks.

Nothing on the hot path knows of this. A process that is told to keep a record puts the functions below
around its own before it starts to serve; one that is not told runs them as they are.
"""

from __future__ import annotations

import cProfile
import importlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from pie_py.config.server import TraceConfig
from pie_py.wire.plan import NextDist, Plan, Sample

MARKS = 50_000  # newest ones kept
COUNTS = 500
PLANS_A_COUNT = 8  # calls are counted at every so manieth plan


@dataclass(frozen=True)
class Tap:
    """A function of a module or class whose time is a stage's."""

    stage: str
    owner: str  # a module, or a class of one
    name: str

    def replace(self, change: Callable[[Any], Any]) -> None:
        """Puts what `change` makes of the function in its place.

        Raises:
            AttributeError: if it is not there.
        """
        owner = self._owner()
        setattr(owner, self.name, change(getattr(owner, self.name)))

    def check(self) -> None:
        """Raises AttributeError if there is no such function."""
        getattr(self._owner(), self.name)

    def _owner(self) -> Any:
        try:
            return importlib.import_module(self.owner)
        except ModuleNotFoundError:
            module, _, name = self.owner.rpartition(".")
            return getattr(importlib.import_module(module), name)


class StageClock:
    """Divides a thread's time among named stages, of which exactly one runs at every moment.

    So they add up to the time that has passed. The clock is Linux's monotonic one, the same in all
    processes of a machine.
    """

    def __init__(self, stages: Sequence[str], rest: str) -> None:
        """Takes the stages' names, and that of the time that is in none of them."""
        self.stages = (*dict.fromkeys(stages), rest)
        self._spent = [0] * len(self.stages)
        self._current = len(self.stages) - 1
        self.since = perf_counter_ns()  # when the stage that runs began, or was gone on with
        self._marks: deque[tuple[str, int, int, int, tuple[int, ...]]] = deque(maxlen=MARKS)

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
        number = self.stages.index(stage)
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
        spent = list(self._spent)
        spent[self._current] += now - self.since
        self._marks.append((event, plan, now if at is None else at, tokens, tuple(spent)))

    def write(self, file: Path) -> None:
        """Writes all marks."""
        file.write_text(json.dumps({"stages": self.stages, "marks": list(self._marks)}))


class CallCounter:
    """Counts the calls of every function of this thread, of Python and of C, at every few plans."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()
        self._counts: deque[tuple[int, int, int, dict[str, int]]] = deque(maxlen=COUNTS)

    def start(self) -> None:
        """Counts from now on."""
        self._profile.enable()

    def stop(self) -> None:
        """Counts no longer, until `start`."""
        self._profile.disable()

    def mark(self, plan: int, tokens: int) -> None:
        """Notes the counts so far, if this plan's turn has come."""
        if plan % PLANS_A_COUNT:
            return
        self.stop()
        counts: dict[str, int] = {}
        for entry in self._profile.getstats():
            name = _name(entry.code)
            counts[name] = counts.get(name, 0) + entry.callcount
        self._counts.append((plan, perf_counter_ns(), tokens, counts))
        self.start()

    def write(self, file: Path) -> None:
        """Writes all counts."""
        self.stop()
        file.write_text(json.dumps(list(self._counts)))


@contextmanager
def recording(
    config: TraceConfig | None,
    process: str,
    count: Callable[[CallCounter], None],
    clock: Callable[[], StageClock],
) -> Iterator[None]:
    """Within it, a process keeps a record if one is wanted; it is written at the end.

    Args:
        config: what is wanted, and the folder where it goes.
        process: name of the record's file.
        count: prepares a counter of calls, which counts from then on.
        clock: makes a clock that runs.
    """
    if config is None:
        yield
        return
    config.folder.mkdir(parents=True, exist_ok=True)
    record: CallCounter | StageClock
    if config.kind == "calls":
        record = CallCounter()
        count(record)
        record.start()
    else:
        record = clock()
    try:
        yield
    finally:
        record.write(config.folder / f"{process}.json")


def tokens_of(plan: Plan) -> int:
    """How many next tokens a plan asks for."""
    return sum(b.embeds.size for b in plan.batches if isinstance(b, NextDist | Sample))


def _name(code: Any) -> str:
    """Module and name of a function, as people read them; C functions have a text already."""
    if isinstance(code, str):
        return code
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_qualname}"
