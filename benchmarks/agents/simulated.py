"""`agents --simulated`: sessions of the published size on a simulated GPU, before the server's own
scheduler and prefix cache, per policy of what is kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.agents.sessions import WORDS, Session, Turn, drawn, read_trace, traced
from benchmarks.benchmark import Progress
from benchmarks.goals.simulation import INPUT, MODEL, PAGE, SEQUENCE, STEP, SWAP, Guest, Simulation
from pie_py.bench.report import Goal, Report, percentile

FIRST, TOKENS = 10_000, 142_000  # of the common beginning, and of the last prompt
PART = 2000  # tokens of a forward
PAGE_BYTES = PAGE << 17  # of an 8B model
LOOK = 0.05  # seconds between two looks for pages
NUMBERS = {word: number for number, word in enumerate(WORDS, 20)}


class Policy(NamedTuple):
    """What the server is told, and has."""

    told: bool  # which tools are waited for
    waits: bool  # texts wait for room
    host: float  # pages of host memory, of those of sessions at their ends


POLICIES = {
    "LRU": Policy(told=False, waits=False, host=0),
    "expected rest": Policy(told=True, waits=False, host=0),
    "and admission": Policy(told=True, waits=True, host=0),
    "and host memory": Policy(told=True, waits=True, host=0.5),
}


@dataclass(frozen=True)
class _Large:
    turns: int = 43
    words: int = (TOKENS - FIRST) // 43
    fast: float = 1.5
    slow: float = 30.0


def _costs() -> dict[str, Any]:
    swap, tokens = {"seconds": 1e-3, "bytes_per_second": 1e3 * PAGE_BYTES / SWAP}, [64, 512, 2048]
    seconds = [(STEP + n * INPUT) / 1e3 for n in tokens]
    steps = {"sequences": [1, 16], "seconds": [(STEP + n * SEQUENCE) / 1e3 for n in (1, 16)]}
    prefill = {"tokens": tokens, "seconds": seconds, "fit": [STEP / 1e3, INPUT / 1e3, 0]}
    facts = {"page_bytes": PAGE_BYTES, "page_size": PAGE, "swap_out": swap, "swap_in": swap}
    return {**facts, "prefill": prefill, "decode": steps}


class _Sessions:
    """Sessions under one policy."""

    simulation: Simulation

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.took: list[float] = []  # seconds of sessions,
        self.seconds: list[float] = []  # and of turns
        self.asked = self.found = 0  # tokens of prompts

    def begin(self, sessions: Iterator[Session]) -> None:
        """Does one after the other."""
        if (session := next(sessions, None)) is not None:
            begun = self.simulation.now

            def over() -> None:
                self.took.append(self.simulation.now - begun)
                self.begin(sessions)

            self._do(session, over)

    def _do(self, session: Session, over: Callable[[], None]) -> None:
        def on() -> None:
            if next(life, None) is None:
                over()

        life = self._life(session, on)
        on()

    def _life(self, session: Session, on: Callable[[], None]) -> Iterator[bool]:
        """All of a session; it goes on when `on` is called."""
        simulation, text = self.simulation, _tokens(f"{session.system} {session.ask}")
        for turn in session.turns:
            begun, guest = simulation.now, Guest(simulation, "agent")
            yield from self._turn(guest, text, turn, on)
            self.seconds.append(simulation.now - begun)
            if self.policy.told and turn.tool:
                simulation.models.await_tools(guest.instance, [turn.tool])
            elif self.policy.told:
                simulation.models.await_person(guest.instance)
            guest.end()
            if not turn.tool:
                return
            text += _tokens(turn.result)
            if turn.task is None:
                simulation.later(simulation.now + turn.seconds, on)
            else:
                self._do(turn.task, on)
            yield True
            if self.policy.told:
                simulation.models.await_tools(guest.instance, [])

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
    report, share = (
        Report("Simulated sessions of agents", columns),
        settings.sessions * TOKENS / PAGE,
    )
    progress.expect(len(POLICIES) * settings.rounds)
    trace = settings.trace and read_trace(settings.trace)
    make = (
        partial(traced, trace=trace, scale=1)
        if trace
        else partial(drawn, shape=_Large(), first=FIRST)
    )
    for name, policy in POLICIES.items():
        found = _Sessions(policy)
        costs, host = _costs() if policy.waits else None, int(policy.host * share)
        sizes = {"kv_pages": int(settings.memory * share), "host_pages": host, "kv_costs": costs}
        for seed in range(settings.rounds):
            with tempfile.TemporaryDirectory(prefix="pie-") as folder:
                run = found.simulation = Simulation(
                    "adaptive", Path(folder), replace(MODEL, **sizes)
                )
                for number in range(settings.sessions):
                    both = iter([make(f"{seed} {number} {which}") for which in range(2)])
                    run.later(0.5 * number, partial(found.begin, both))
                run.run_all()
            progress(f"{name}: {mean(found.took):.0f} s a session")
        turns, took = found.seconds, found.took
        figures = median(turns), percentile(turns, 0.95), mean(took), max(took)
        report.rows.append([name, found.found / found.asked, *figures])
    ratio = report.rows[0][-2] / report.rows[-1][-2]
    report.goals.append(Goal("seconds of a session, LRU's over ours", ratio, 1.2, at_most=False))
    return report
