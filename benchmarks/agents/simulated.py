"""`agents --simulated`: sessions of the published size on a simulated GPU, before the server's own
scheduler and prefix cache, per policy of what is kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.agents.sessions import (
    WORDS,
    Session,
    Shape,
    Turn,
    drawn,
    longest,
    read_trace,
    traced,
)
from benchmarks.benchmark import Progress
from benchmarks.goals.simulation import INPUT, MODEL, PAGE, SEQUENCE, STEP, SWAP, Guest, Simulation
from pie_py.bench.report import Goal, Report, percentile

TOKENS = 142_000  # of the last prompt
SHAPE = Shape(turns=43, words=2900, fast=1.5, slow=15.0, first=10_000, output=200)
PART = 2000  # tokens of a forward
PAGE_BYTES = PAGE << 17  # of an 8B model
LOOK = 0.05  # seconds between two looks for pages
NUMBERS = {word: number for number, word in enumerate(WORDS, 20)}


# What the server is told: the tools that are waited for; whether texts wait for room; and host
# pages, of those of sessions at their ends.
POLICIES = {
    "LRU": (False, False, 0.0),
    "expected rest": (True, False, 0.0),
    "and admission": (True, True, 0.0),
    "and host memory": (True, True, 0.5),
}


def _costs() -> dict[str, Any]:
    swap, tokens = {"seconds": 1e-3, "bytes_per_second": 1e3 * PAGE_BYTES / SWAP}, [64, 512, 2048]
    seconds = [(STEP + n * INPUT) / 1e3 for n in tokens]
    steps = {"sequences": [1, 16], "seconds": [(STEP + n * SEQUENCE) / 1e3 for n in (1, 16)]}
    prefill = {"tokens": tokens, "seconds": seconds, "fit": [STEP / 1e3, INPUT / 1e3, 0]}
    facts = {"page_bytes": PAGE_BYTES, "page_size": PAGE, "swap_out": swap, "swap_in": swap}
    return {**facts, "prefill": prefill, "decode": steps}


class _Sessions:
    """Sessions under one policy; `told` is whether tools are."""

    simulation: Simulation

    def __init__(self, told: bool) -> None:
        self._told = told
        self.took: list[float] = []  # seconds of sessions,
        self.seconds: list[float] = []  # and of turns
        self.asked = self.found = 0  # tokens of prompts

    def begin(self, session: Session, then: Callable[[], None]) -> None:
        """Does a session, and what comes then."""

        def on() -> None:
            if next(life, None) is None:
                then()

        life = self._life(session, on)
        on()

    def _life(self, session: Session, on: Callable[[], None]) -> Iterator[bool]:
        """All of a session; it goes on when `on` is called."""
        simulation, text = self.simulation, _tokens(f"{session.system} {session.ask}")
        first = simulation.now
        for turn in session.turns:
            begun, guest = simulation.now, Guest(simulation, "agent")
            yield from self._turn(guest, text, turn, on)
            self.seconds.append(simulation.now - begun)
            if self._told and turn.tool:
                simulation.models.await_tools(guest.instance, [turn.tool])
            elif self._told:
                simulation.models.await_person(guest.instance)
            guest.end()
            if not turn.tool:
                break
            text += _tokens(turn.result)
            if turn.task is None:
                simulation.later(simulation.now + turn.seconds, on)
            else:
                self.begin(turn.task, on)
            yield True
            if self._told:
                simulation.models.await_tools(guest.instance, [])
        if not session.is_task:
            self.took.append(simulation.now - first)

    def _turn(
        self, guest: Guest, text: list[int], turn: Turn, on: Callable[[], None]
    ) -> Iterator[bool]:
        simulation, count, pool = self.simulation, len(text), self.simulation.service.pages
        while True:
            spans, future = guest.do("match-prefix", "", np.array(text[:-1], np.uint32))
            if not future:
                break
            guest.when(future, on)
            yield True
            simulation.functions["take"](guest.instance, future)
        have = spans[1] if spans else 0
        self.asked, self.found = self.asked + count, self.found + have * PAGE
        while pool.free < (need := -(-(count + turn.output) // PAGE) + 1 - have):
            simulation.later(simulation.now + LOOK, on)
            yield True
        new = guest.do("alloc-kvpage", need)
        pages = [*range(*(spans[0], spans[0] + have) if spans else (0,)), *range(new, new + need)]
        own = guest.do("alloc-emb", count - have * PAGE + 2)
        last = own + count - have * PAGE
        for at in range(have * PAGE, count, PART):
            end = min(at + PART, count)
            inputs = [own + at - have * PAGE, end - at]
            guest.do("embed-txt", text[at:end], [at, end - at], inputs)
            outputs = [last, 1] if end == count else []
            filled = _spans(pages[at // PAGE : -(-end // PAGE)])
            guest.do("forward", _spans(pages[: -(-at // PAGE)]), inputs, filled, outputs, [])
        guest.do("insert-prefix", _spans(pages))
        held = _spans(pages[: -(-count // PAGE)]), _spans(pages[count // PAGE :])
        places = last, count, last + 1
        run = guest.do("start-run", guest.sampler, *places, *held, "", turn.output, [])
        guest.when(guest.do("run-progress", run, turn.output), on)
        yield True
        guest.do("end-run", run, 0)
        text += [16] * turn.output
        guest.do("insert-prefix", _spans(pages))


def _tokens(text: str) -> list[int]:
    return [NUMBERS.get(word, 50 + sum(word.encode()) % 900) for word in text.split()]


def _spans(pages: Sequence[int]) -> list[int]:
    return [part for page in pages for part in (page, 1)]


def simulated(settings: Any, progress: Progress) -> Report:
    """Simulates the same sessions under all policies, two after each other of those at once."""
    columns = ["policy", "of prompts cached", "s of a turn", "p95", "s of a session", "longest"]
    report = Report("Simulated sessions of agents", columns)
    progress.expect(len(POLICIES) * settings.rounds)
    trace = settings.trace and read_trace(settings.trace)
    make = partial(traced, trace=trace, scale=1) if trace else partial(drawn, shape=SHAPE)
    pages = settings.sessions * (longest(make("0")) if trace else TOKENS) // PAGE
    for name, (told, waits, host) in POLICIES.items():
        found, costs = _Sessions(told), _costs() if waits else None
        sizes: dict[str, Any] = {
            "kv_pages": int(settings.memory * pages),
            "host_pages": int(host * pages),
        }
        model = replace(MODEL, kv_costs=costs, **sizes)
        for seed in range(settings.rounds):
            with tempfile.TemporaryDirectory(prefix="pie-") as folder:
                run = found.simulation = Simulation("adaptive", Path(folder), model)
                for number in range(settings.sessions):
                    one, other = (make(f"{seed} {number} {which}") for which in range(2))
                    then = partial(found.begin, other, lambda: None)
                    run.later(0.5 * number, partial(found.begin, one, then))
                run.run_all()
            progress(f"{name}: {mean(found.took):.0f} s a session")
        turns, took = found.seconds, found.took
        figures = median(turns), percentile(turns, 0.95), mean(took), max(took)
        report.rows.append([name, found.found / found.asked, *figures])
    ratio = report.rows[0][-2] / report.rows[-1][-2]
    report.goals.append(Goal("seconds of a session, LRU's over ours", ratio, 1.2, at_most=False))
    return report
