"""An observer of both processes that counts the calls of every function, of Python and of C."""

from __future__ import annotations

import cProfile
import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from pie_py.bench.observed import after_plans_decoded, after_plans_sent, replace
from pie_py.config.plugins import Process

COUNTS = 500  # newest ones kept
PLANS_PER_COUNT = 8


@contextmanager
def count_calls(process: Process, folder: Path, messages: Any) -> Iterator[None]:
    """Counts while it lasts, and writes `PROCESS.json`."""
    counter = CallCounter()
    if process == "control":
        after_plans_sent(messages, counter.mark)
    else:
        # How often the worker looks for a message says nothing about its work.
        replace(messages, "receive", counter.uncounted)
        after_plans_decoded(messages, counter.mark)
    counter.start()
    try:
        yield
    finally:
        counter.write(folder / f"{process}.json")


class CallCounter:
    """Counts the calls of every function of this thread, at every few plans."""

    def __init__(self) -> None:
        self._profile = cProfile.Profile()
        self._counts: deque[tuple[int, int, int, dict[str, int]]] = deque(maxlen=COUNTS)

    def start(self) -> None:
        """Counts from now on."""
        self._profile.enable()

    def stop(self) -> None:
        """Counts no longer, until `start`."""
        self._profile.disable()

    def uncounted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, within which nothing is counted."""

        def run(*args: Any) -> Any:
            self.stop()
            found = function(*args)
            self.start()
            return found

        return run

    def mark(self, plan: int, tokens: int) -> None:
        """Keeps the counts so far if the plan's number is a multiple of `PLANS_PER_COUNT`."""
        if plan % PLANS_PER_COUNT:
            return
        self.stop()
        counts: dict[str, int] = {}
        for entry in self._profile.getstats():
            name = _name(entry.code)
            counts[name] = counts.get(name, 0) + entry.callcount
        self._counts.append((plan, perf_counter_ns(), tokens, counts))
        self.start()

    def write(self, file: Path) -> None:
        """Writes all counts: plan, time in ns, tokens, calls by name."""
        self.stop()
        file.write_text(json.dumps(list(self._counts)))


def _name(code: Any) -> str:
    """Module and name of a Python function; C functions have a text already."""
    if isinstance(code, str):
        return code
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_qualname}"
