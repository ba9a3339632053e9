"""An observer of both processes that counts the calls of every function, of Python and of C."""

from __future__ import annotations

import cProfile
import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from pie_py.config.plugins import Process
from pie_py.wire.plan import Again, NextDist, Plan, Sample

COUNTS = 500  # newest ones kept
PLANS_PER_COUNT = 8


@contextmanager
def count_calls(process: Process, folder: Path, messages: Any) -> Iterator[None]:
    """Counts while it lasts, and writes `PROCESS.json`: plan, time in ns, tokens, calls by name.

    Tokens are those asked for so far: the control process counts a plan once it is sent, the worker
    before it begins.
    """
    counter = CallCounter()
    (counter.watch_control if process == "control" else counter.watch_worker)(messages)
    counter.profile.enable()
    try:
        yield
    finally:
        counter.profile.disable()
        (folder / f"{process}.json").write_text(json.dumps(list(counter.counts)))


class CallCounter:
    """Counts the calls of every function of this thread, at every few plans."""

    def __init__(self) -> None:
        self.profile = cProfile.Profile()
        self.counts: deque[tuple[int, int, int, dict[str, int]]] = deque(maxlen=COUNTS)
        self._tokens = 0

    def watch_control(self, link: Any) -> None:
        """Counts at each plan that `WorkerLink` sends."""
        order = link.order

        def watched(own: Any, message: Any) -> None:
            order(own, message)
            if isinstance(message, Plan):
                self._tokens += tokens_of(message)
                self._mark(message.id)

        link.order = watched

    def watch_worker(self, messages: Any) -> None:
        """Counts at each plan that the worker's `decode` gives; how often it looks for a message
        says nothing about its work.
        """
        receive, decode = messages.receive, messages.decode

        def uncounted(*args: Any) -> Any:
            self.profile.disable()
            found = receive(*args)
            self.profile.enable()
            return found

        def watched(frame: Any) -> Any:
            message = decode(frame)
            if isinstance(message, Plan):
                self._mark(message.id)
                self._tokens += tokens_of(message)
            return message

        messages.receive, messages.decode = uncounted, watched

    def _mark(self, plan: int) -> None:
        if plan % PLANS_PER_COUNT:
            return
        self.profile.disable()
        calls: dict[str, int] = {}
        for entry in self.profile.getstats():
            name = _name(entry.code)
            calls[name] = calls.get(name, 0) + entry.callcount
        self.counts.append((plan, perf_counter_ns(), self._tokens, calls))
        self.profile.enable()


def tokens_of(plan: Plan) -> int:
    """How many next tokens a plan asks for."""
    tokens = sum(b.embeds.size for b in plan.batches if isinstance(b, NextDist | Sample))
    further = (np.count_nonzero(b.slots >= 0) for b in plan.batches if isinstance(b, Again))
    return tokens + int(sum(further))


def _name(code: Any) -> str:
    """Module and name of a Python function; C functions have a text already."""
    if isinstance(code, str):
        return code
    path = Path(code.co_filename)
    return f"{path.parent.name}/{path.name}:{code.co_qualname}"
