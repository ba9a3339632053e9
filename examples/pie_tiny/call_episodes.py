"""Episodes with calls: synchronous ones in turns, asynchronous ones with a simulated clock."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from random import Random

from examples.pie_tiny.corpus.calls import SEQUENTIAL, interrupt_block
from examples.pie_tiny.corpus.cml import USER
from examples.pie_tiny.corpus.sample import END, Sample, turn
from examples.pie_tiny.corpus.tasks import Chain, Request, describe
from examples.pie_tiny.episodes import Plain, Vocabulary
from examples.pie_tiny.ledger import Ledger, Place, Problem
from examples.pie_tiny.parsing import (
    Block,
    CallBlock,
    CmlError,
    Parser,
    TextBlock,
    TrapBlock,
    Violation,
)


class Calls(Plain):
    """The common part of episodes with calls: the parser and the ledger.

    Attributes:
        ledger: the calls made and what is wrong with them.
        violation: the first violation of CML, which ends the episode.
        said: the text outside of blocks, in the last turn.
    """

    def __init__(self, vocabulary: Vocabulary, sample: Sample) -> None:
        super().__init__(vocabulary, sample)
        request = sample.answer["request"]
        assert isinstance(request, Request)
        known = sample.answer.get("known", len(request.chains))
        assert isinstance(known, int)
        self.later = request.chains[known:]
        self.ledger = Ledger(request, known)
        self.violation: Violation | None = None
        self.said = ""
        self._parser = Parser()
        self._unread: list[int] = []

    @property
    def valid(self) -> bool:
        """True if what it wrote is CML, and came to an end."""
        return self.violation is None and Problem.CUT not in self.ledger.problems

    @property
    def all_right(self) -> bool:
        """True if each expected call was made exactly once, rightly and in its time, and no
        other.
        """
        return self.valid and not self.ledger.problems

    @property
    def closed_right(self) -> bool:
        """True if the words at the end are right too."""
        return self.said == self.ledger.closing_words

    def sampled(self, token: int) -> Sequence[int]:
        """Takes the next token."""
        self._left -= 1
        self._ids.append(token)
        self._unread.append(token)
        self.tick()
        special = self.vocabulary.special.get(token)
        given: Sequence[int] = ()
        try:
            if special == END:
                self._unread.pop()
                blocks = self._read() + self._parser.finish()
                self.said = "".join(block.text for block in blocks if isinstance(block, TextBlock))
                given = self.take(blocks)
                given = given or self.end()
            elif special:
                given = self.take(self._read())
        except CmlError as error:
            self.violation = error.violation
            self._stop()
        if self._left <= 0 and not self.done:
            self.cut()
        self._ids += given
        return given

    def cut(self) -> None:
        """Ends it where it is, as wrong."""
        self.ledger.problems.append(Problem.CUT)
        self._stop()

    def tick(self) -> None:
        """A token has been written."""

    def take(self, blocks: Sequence[Block]) -> Sequence[int]:
        """Acts on blocks that the model has completed; returns what is put in now."""
        raise NotImplementedError

    def end(self) -> Sequence[int]:
        """Acts on the end of a turn; returns what is put in now, nothing if it was the last."""
        raise NotImplementedError

    def _read(self) -> list[Block]:
        text, self._unread = self.vocabulary.decode(self._unread), []
        return self._parser.feed(text)

    def _finish(self) -> None:
        self.whole = True
        self._stop()

    def _stop(self) -> None:
        self.ledger.close()
        self.done = True
        self.text = self.vocabulary.decode(self._ids)


class Synchronous(Calls):
    """The model ends its turn after its calls; a tool turn holds the results.

    Attributes:
        turns_right: whether each turn made as many calls as the form asks for: one, or all ready
            ones.
    """

    def __init__(self, vocabulary: Vocabulary, sample: Sample) -> None:
        super().__init__(vocabulary, sample)
        self.turns_right = True
        self._turn: list[tuple[str, Place | None]] = []
        self._ready = len(self.ledger.ready())

    def take(self, blocks: Sequence[Block]) -> Sequence[int]:
        """Notes the calls; they start when the turn ends."""
        for block in blocks:
            if isinstance(block, CallBlock):
                self._turn.append(
                    (block.identifier, self.ledger.make(block.identifier, block.call))
                )
            elif isinstance(block, TrapBlock):
                self.ledger.problems.append(Problem.SYNCHRONOUS_TRAP)
        return ()

    def end(self) -> Sequence[int]:
        """Answers the turn's calls."""
        wanted = min(1, self._ready) if self.sample.answer["mode"] == SEQUENTIAL else self._ready
        self.turns_right &= len(self._turn) == wanted
        if not self._turn:
            self._finish()
            return ()
        results = ""
        for identifier, place in self._turn:
            results += interrupt_block(identifier, self.ledger.result(place))
            self.ledger.deliver(place)
        self._turn.clear()
        self._ready = len(self.ledger.ready())
        return self.vocabulary.encode("\n" + turn("tool", results) + "<|assistant|>\n")


class Asynchronous(Calls):
    """Calls run while the model writes on; a clock decides when their interrupts come.

    It is the clock of `corpus.cml`, but for the model's own tokens: each takes the same time,
    random for the episode; a call starts when its block closes; what has arrived is put in when a
    block has closed; a trap moves the clock on to the next arrival. The user's further tasks come
    at random times, unless the model has ended before.

    Attributes:
        traps: how many the model wrote before its first mistake.
        unneeded_traps: those written while a call was ready.
    """

    def __init__(self, vocabulary: Vocabulary, sample: Sample, random: Random) -> None:
        super().__init__(vocabulary, sample)
        self.traps = self.unneeded_traps = 0
        self._random = random
        self._now = 0.0
        self._token_seconds = random.uniform(0.005, 0.030)
        self._number = 0
        # When, a number that settles ties, and an identifier with its call, or the user with a
        # task.
        self._events: list[tuple[float, int, str, Place | None, Chain | None]] = []
        self._outstanding = 0
        span = sum(call.function.estimate for chain in self.ledger.chains for call in chain) / 100
        arrivals = sorted(random.uniform(0, span) for _ in self.later)
        for time, chain in zip(arrivals, self.later, strict=True):
            self._schedule(time, USER, None, chain)

    @property
    def trap_missing(self) -> bool:
        """True if it ended while results were outstanding."""
        return Problem.MISSING_TRAP in self.ledger.problems

    def tick(self) -> None:
        """Moves the clock on by a token."""
        self._now += self._token_seconds

    def take(self, blocks: Sequence[Block]) -> Sequence[int]:
        """Starts calls, waits at traps, and puts in what has arrived."""
        given: list[int] = []
        for block in blocks:
            if isinstance(block, CallBlock):
                self._start(block)
            elif isinstance(block, TrapBlock):
                self._wait()
            else:
                continue
            if not self.done:
                given += self._deliver()
        return given

    def end(self) -> Sequence[int]:
        """Ends the episode."""
        self.ledger.choose(None)
        if self._outstanding:
            self.ledger.problems.append(Problem.MISSING_TRAP)
        self._finish()
        return ()

    def _start(self, block: CallBlock) -> None:
        self.ledger.choose(block.call.name)
        place = self.ledger.make(block.identifier, block.call)
        seconds = self.ledger.estimate(block.call.name) / 100 * self._random.uniform(0.7, 1.3)
        if block.identifier:
            self._schedule(self._now + seconds, block.identifier, place, None)
            self._outstanding += 1

    def _wait(self) -> None:
        if not self.ledger.problems:
            self.traps += 1
            self.unneeded_traps += bool(self.ledger.ready())
        self.ledger.choose(None)
        if not self._outstanding:
            self.ledger.problems.append(Problem.IDLE_TRAP)
            self._stop()
            return
        self._now = max(self._now, self._events[0][0])

    def _deliver(self) -> list[int]:
        text = ""
        while self._events and self._events[0][0] <= self._now:
            _, _, identifier, place, task = heapq.heappop(self._events)
            if task is None:
                self._outstanding -= 1
                text += interrupt_block(identifier, self.ledger.result(place))
                self.ledger.deliver(place)
            else:
                self.ledger.chains.append(task)
                text += interrupt_block(USER, "also " + describe(self._random, task))
        return self.vocabulary.encode(text) if text else []

    def _schedule(
        self, time: float, identifier: str, place: Place | None, task: Chain | None
    ) -> None:
        self._number += 1
        heapq.heappush(self._events, (time, self._number, identifier, place, task))
