"""Runs' guesses of their next tokens, and the steps that verify them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from pie_control.scheduler.commands.run import RunCommand
from pie_control.scheduler.commands.sample import NO_MASKS, only
from pie_control.scheduler.run_table import NO_TOKEN, Chosen, Facts, Rows, RunTable
from pie_control.scheduler.speculation import Guesser, Price
from pie_py.device_programs.step_cost import OF_A_STEP, whole_cost
from pie_py.wire.plan import EmbedText, Forward, Int32, Sample, Uint32


@dataclass(frozen=True, slots=True)
class Guessed:
    """The guesses of the runs of a step."""

    widths: Int32  # [n] inputs of each run: the token that it has, and its guesses
    drafts: Int32  # [inputs] the guess at the token after each input, -1 after the last of a run
    filled: Int32  # [n] slots of `Steps.current` that were filled before


class Guesses:
    """The runs that guess, and their guesses: for the next step, or at the worker."""

    def __init__(self, table: RunTable, drafts: range) -> None:
        """No run guesses yet.

        Args:
            table: of the runs.
            drafts: embeds for guessed tokens.
        """
        self.guessers: dict[RunCommand, Guesser] = {}
        self.guessing: set[int] = set()  # rows that wait to guess, or for what became of guesses
        self.price = Price()
        self.room = len(drafts)  # guesses that a step may have at most
        self._table = table
        self._drafts = drafts
        self._next: dict[int, list[int]] = {}  # of rows, for their next step
        self._verifying: set[int] = set()  # rows whose guesses are at the worker

    def guess(self, run: RunCommand, row: int, limit: int) -> int:
        """Guesses a run's next tokens if all before are there and that pays; how far it may go."""
        if row in self._verifying:
            return 0
        waited = row in self.guessing
        self._next.pop(row, None)
        self.guessing.discard(row)
        if not limit:
            return 0
        self._table.collect(run)
        guesser = self.guessers[run]
        guesser.read(run.received)
        sent, came = self._table.facts.sent.item(row), self._table.facts.came.item(row)
        if len(run.received) < came:  # the first token has not come
            return limit
        most = min(limit - came - 1, self.room)
        guess = guesser.guess(most, self.price) if most > 0 else []
        if guess is None:
            return 0
        if not guess:
            if waited:
                guesser.learn(1, 0, (), self.price)
            return limit
        self.guessing.add(row)
        if sent > came:
            return sent
        self._next[row] = guess
        return limit

    def take(self, rows: Rows, most: int) -> Guessed | None:
        """Some rows' guesses, at most so many, with spare pages; None if there are none."""
        if not self._next:
            return None
        room = min(most, self.room)
        costs = self._table.step_costs(rows)
        time = OF_A_STEP - whole_cost(costs)  # that guesses' device programs may take
        widths = np.ones(rows.size, np.int32)
        drafts: list[int] = []
        for i, row in enumerate(rows.tolist()):
            guess = self._next.pop(row, [])[:room]
            if cost := costs.item(-1, i):
                guess = guess[: max(0, time // cost)]
            guess = guess[: self._slots(row, len(guess) + 1) - 1]
            time -= cost * len(guess)
            if guess:
                self._verifying.add(row)
                self._table.facts.limit[row] = 0
            else:
                self.guessing.discard(row)
            room -= len(guess)
            widths[i] += len(guess)
            drafts += [*guess, NO_TOKEN]
        if len(drafts) == rows.size:
            return None
        return Guessed(widths, np.array(drafts, np.int32), self._table.filled(rows))

    def _slots(self, row: int, wanted: int) -> int:
        """How many slots a row can fill, of those that it wants, with pages that are spare."""
        facts, size = self._table.facts, self._table.page_size
        filled = self._table.used.item(row, facts.current.item(row))
        while True:
            room = (facts.page_count.item(row) - facts.current.item(row)) * size - filled
            if room >= wanted or not self._table.take_spare_pages(np.array([row])):
                return min(room, wanted)

    def batches(
        self, rows: Rows, facts: Facts, guessed: Guessed
    ) -> tuple[EmbedText, Forward, Sample]:
        """The batches of a step of rows with these facts, some of which guess."""
        size, widths, drafts = self._table.page_size, guessed.widths, guessed.drafts
        firsts = np.cumsum(widths) - widths
        owners = np.repeat(np.arange(rows.size), widths)
        behind = (np.arange(owners.size) - firsts[owners]).astype(np.int32)  # a run's first input
        is_guess = behind > 0
        tokens = drafts[drafts >= 0]
        scratch = np.arange(self._drafts.start, self._drafts.start + tokens.size, dtype=np.int32)
        inputs = facts.embed[owners]
        inputs[is_guess] = scratch
        offsets = guessed.filled[owners] + behind
        pages = self._table.pages[rows[owners], facts.current[owners] + offsets // size]
        starts = np.append(firsts, owners.size).astype(np.int32)
        forward = replace(
            self._table.forward(rows, facts),
            input_starts=starts,
            inputs=inputs,
            output_slots=(pages * size + offsets % size).astype(np.int32),
            output_starts=starts,
            outputs=inputs,
        )
        sample = Sample(
            embeds=inputs,
            samplers=facts.sampler[owners],
            steps=(facts.choice[owners] + behind).view(np.uint32),
            top=np.zeros(owners.size, np.int32),
            masked=np.full(owners.size, -1, np.int32),
            masks=np.zeros((0, 0), np.uint32),
            drafts=drafts,
        )
        positions = (facts.position[owners] + behind)[is_guess]
        self._table.go_on(rows, widths, guessed.filled)
        return EmbedText(tokens, positions, scratch), forward, sample

    def accept(
        self, guessed: Guessed, i: int, run: RunCommand, row: int, chosen: Chosen
    ) -> list[int]:
        """The `i`-th run of a step has chosen some tokens, with guesses before them; -1 where none
        could be.

        Args:
            guessed: what the step guessed.
            i: the run's place in it.
            run: that guessed.
            row: its row.
            chosen: the tokens, with their log-probabilities.

        Returns:
            Those that stand; the last may be -1.
        """
        facts, width = self._table.facts, int(guessed.widths[i])
        first = int(guessed.widths[:i].sum())
        choices = chosen.tokens.tolist()
        stands = _standing(choices, guessed.drafts[first : first + width].tolist(), run.stops)
        self._verifying.discard(row)
        self.guessing.discard(row)
        self._table.go_back(row, width - len(stands))
        self._table.collect(run)
        tokens = stands if stands[-1] >= 0 else stands[:-1]
        facts.came[row] += len(tokens)
        run.received.extend(tokens)
        run.logprobs.extend(chosen.logprobs[: len(tokens)].tolist())
        run.queue.owner.generated_tokens += len(tokens)
        guesser, behind = self.guessers[run], takewhile(NO_TOKEN.__lt__, choices[len(stands) :])
        guesser.read(run.received)
        guesser.learn(width - 1, len(stands) - 1, list(behind), self.price)
        return stands

    def drop(self, row: int) -> None:
        """The run of a row is over."""
        self._next.pop(row, None)
        self._verifying.discard(row)
        self.guessing.discard(row)


def _standing(tokens: list[int], drafts: list[int], stops: frozenset[int]) -> list[int]:
    """Those of a run's tokens that are as if they had been chosen one by one."""
    for i, (token, draft) in enumerate(zip(tokens, drafts, strict=True)):
        if token != draft or token in stops or draft < 0:
            return tokens[: i + 1]
    raise ValueError("a run's last choice is guessed")


UNLIMITED = 1 << 30  # tokens


class Known:
    """Guesses tokens that were chosen before, which a durable instance's sampler chooses again, and
    then what another guesser does, if there is one.

    A sampler chooses among all tokens that a mask allows, and here that is one. So what it keeps of
    its text is as if it had chosen freely. As guesses these cannot be wrong: many go through the
    model at once.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self.then: Guesser | None = None
        self._tokens = list(tokens)
        self._read = 0

    @property
    def is_over(self) -> bool:
        """True if the run has them all."""
        return self._read >= len(self._tokens)

    def read(self, tokens: Sequence[int]) -> None:
        """Takes those of a run's tokens that are new."""
        self._read = len(tokens)
        if self.then is not None:
            self.then.read(tokens)

    def guess(self, most: int, price: Price) -> list[int] | None:
        """The next ones."""
        if self.is_over:
            return [] if self.then is None else self.then.guess(most, price)
        return self._tokens[self._read :][:most]

    def learn(self, guessed: int, accepted: int, behind: Sequence[int], price: Price) -> None:
        """Nothing of its own guesses."""
        if self.is_over and self.then is not None:
            self.then.learn(guessed, accepted, behind, price)

    @property
    def rests(self) -> int:
        """Tokens before it guesses again."""
        if not self.is_over:
            return 0
        return UNLIMITED if self.then is None else self.then.rests


def masks_of(
    runs: Sequence[RunCommand | None], numbers: Sequence[int], vocabulary: int
) -> tuple[Int32, Uint32]:
    """`masked` and `masks` of a `Sample` whose rows choose runs' tokens of these numbers."""
    masked = np.full(len(runs), -1, np.int32)
    masks: list[Uint32] = []
    for row, (run, number) in enumerate(zip(runs, numbers, strict=True)):
        if run is not None and number < len(run.known):
            masked[row] = len(masks)
            masks.append(only(run.known[number], vocabulary))
    return masked, np.stack(masks) if masks else NO_MASKS
