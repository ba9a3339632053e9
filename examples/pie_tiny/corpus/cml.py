"""Asynchronous function calls in CML, as a simulated executor would time them (AsyncLM, section
4.2).

The simulation keeps a clock: every token costs the same random time, a call runs for about its
estimate, and its interrupt is put in when it has arrived and no block is being written. Of the
calls that are ready, the one with the longest estimate goes first (LPT); when none is ready, a
trap.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from random import Random

from examples.pie_tiny.corpus.calls import call_block, final_results, interrupt_block
from examples.pie_tiny.corpus.functions import Value
from examples.pie_tiny.corpus.sample import BEGIN, CLOSE, END, TRAP, Piece, Sample, Split, turn
from examples.pie_tiny.corpus.tasks import (
    Chain,
    Request,
    chain_letter,
    closing_words,
    describe,
    draw_lengths,
    draw_request,
    identifier,
    system_prompt,
    user_prompt,
)

ASYNCHRONOUS = "asynchronous"
USER = "user"
CHARACTERS_PER_TOKEN = 2.5
"""Of text in calls; the clock needs the number of tokens, but not exactly."""


def asynchronous(random: Random, split: Split) -> Sample:
    """Asynchronous calls; in a fifth of the samples the user interrupts with further tasks."""
    lengths = draw_lengths(random, random.random() < 0.12)
    late = 0
    if random.random() < 0.2:
        late = random.choice((1, 1, 2))
        lengths += [random.randint(1, 2) for _ in range(late)]
    request = draw_request(random, split, lengths, random.randrange(4))
    return simulate(random, request, late)


def simulate(random: Random, request: Request, late: int, *, listed: bool = False) -> Sample:
    """One run: what the model should write and what it is interrupted with.

    Args:
        random: for the times and the words.
        request: all functions and chains.
        late: so many of the last chains come as interrupts of the user.
        listed: as in `user_prompt`.
    """
    first = len(request.chains) - late
    known = request.chains[:first]
    prompt = turn("system", system_prompt(ASYNCHRONOUS, request.functions))
    prompt += turn("user", user_prompt(random, known, listed=listed))
    run = _Run(random, list(known), token_seconds=random.uniform(0.005, 0.030))
    span = sum(call.function.estimate for chain in known for call in chain) / 100
    arrivals = sorted(random.uniform(0, span) for _ in range(late))
    for time, chain in zip(arrivals, request.chains[first:], strict=True):
        heapq.heappush(run.events, (time, -1, chain))
    run.play()
    done = Request(request.functions, tuple(run.chains))
    pieces = (Piece(f"{BEGIN}{prompt}<|assistant|>\n", False), *run.pieces())
    return Sample("asynchronous", pieces, done)


@dataclass
class _Run:
    """The state of a simulation: the clock, what is under way, what has been written."""

    random: Random
    chains: list[Chain]
    token_seconds: float
    now: float = 0.0
    events: list[tuple[float, int, Chain | None]] = field(
        default_factory=list
    )  # time, chain, new chain
    step: dict[int, int] = field(default_factory=dict)  # chain -> its next step
    waiting: set[int] = field(default_factory=set)  # chains with a call under way
    written: list[Piece] = field(default_factory=list)

    def play(self) -> None:
        """Runs to the end: every chain called, every interrupt delivered, the closing words."""
        while True:
            self._deliver()
            chain = self._longest_ready()
            if chain is not None:
                self._call(chain)
            elif self.waiting:
                self._write(TRAP + CLOSE)
                self.now = max(self.now, self.events[0][0])
            else:
                self._write(closing_words(final_results(self.chains)) + END)
                return

    def pieces(self) -> list[Piece]:
        """The pieces written, neighbours of one sort joined."""
        joined: list[Piece] = []
        for piece in self.written:
            if joined and joined[-1].learned == piece.learned:
                piece = Piece(joined.pop().text + piece.text, piece.learned)
            joined.append(piece)
        return joined

    def _deliver(self) -> None:
        """Puts in the interrupts of everything that has happened by now."""
        while self.events and self.events[0][0] <= self.now:
            _, number, task = heapq.heappop(self.events)
            if task is not None:
                self.chains.append(task)
                block = interrupt_block(USER, "also " + describe(self.random, task))
            else:
                step = self.step[number] - 1
                call = self.chains[number][step]
                self.waiting.discard(number)
                if call.failed:
                    self.step[number] = len(self.chains[number])
                block = interrupt_block(f"{chain_letter(number)}{step + 1}", call.written_result)
            self.written.append(Piece(block, False))

    def _longest_ready(self) -> int | None:
        ready = [
            (-calls[self.step.get(number, 0)].function.estimate, number)
            for number, calls in enumerate(self.chains)
            if number not in self.waiting and self.step.get(number, 0) < len(calls)
        ]
        return min(ready)[1] if ready else None

    def _call(self, number: int) -> None:
        step = self.step.get(number, 0)
        call = self.chains[number][step]
        previous: Value | None = self.chains[number][step - 1].result if step else None
        self._write(call_block(identifier(self.chains, number, step), call.text(previous)))
        self.step[number] = step + 1
        if not call.answered:
            return
        self.waiting.add(number)
        seconds = call.function.estimate / 100 * self.random.uniform(0.7, 1.3)
        heapq.heappush(self.events, (self.now + seconds, number, None))

    def _write(self, text: str) -> None:
        self.written.append(Piece(text, True))
        self.now += max(2.0, len(text) / CHARACTERS_PER_TOKEN) * self.token_seconds
