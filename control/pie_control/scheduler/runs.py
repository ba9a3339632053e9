"""The runs of one model: a row each in tables of arrays, from which their steps are formed.

A plan of many runs costs a few operations of NumPy, not some objects for each run. Their steps are
rows of the same batches that commands are in: what decodes step by step, prompts and runs share one
forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.commands.command import NOTHING, Account, QueueOwner
from pie_control.commands.forward import (
    MAX_CONTEXT_PAGES,
    NO_ADAPTER,
    NO_SAMPLER,
    ForwardCommand,
)
from pie_control.commands.run import MOST_STOPS, ROOM, RunCommand
from pie_control.commands.sample import EmbedSampledCommand, SampleCommand
from pie_control.errors import ApiError
from pie_control.scheduler.program_time import fitting
from pie_control.scheduler.speculation import Guesser, Price
from pie_py.device_programs.step_cost import OF_A_STEP, whole_cost
from pie_py.wire.plan import (
    Again,
    BatchResult,
    EmbedSampled,
    EmbedText,
    Forward,
    Int32,
    Sample,
)

Rows: TypeAlias = NDArray[np.intp]

# What is known of a run, a row each: where its next step reads and writes, how far it is, and what
# has come of it.
FACTS = range(19)
SAMPLER, EMBED, POSITION, ADAPTER, MASKED, SENT, LIMIT, CURRENT, PAGES, CHOICE, LAST = FACTS[:11]
CAME, NOTICE, FRESH, NUMBER, PROGRAM, ONCE, COST, ATTENDS = FACTS[11:]
STEP_COST = [PROGRAM, ONCE, COST]  # as `StepCost` has it
NO_TOKEN = -1
# The batches of a step, with the code of a run's error if the worker refuses its row of one.
REFUSED_AS = {
    kind.kind: kind.refused_as for kind in (EmbedSampledCommand, ForwardCommand, SampleCommand)
}
STEP = tuple(REFUSED_AS)


@dataclass(frozen=True, slots=True)
class Guessed:
    """What the runs of a step guess."""

    widths: Int32  # [n] inputs of each run: the token that it has, and its guesses
    drafts: Int32  # [inputs] the guess at the token after each input, -1 after the last of a run
    filled: Int32  # [n] slots of `Steps.current` that were filled before


@dataclass(slots=True, eq=False)
class Steps:
    """One step of some runs, as rows of three batches: `EmbedSampled`, `Forward`, `Sample`.

    A run that guesses has more than one input, and as many choices.
    """

    runs: Runs
    rows: Rows
    numbers: Int32  # of the runs: other ones may have the rows when the answer comes
    current: Int32  # of their pages, that the step fills
    span: tuple[Any, ...] | None = None  # of the forward, for time lines; once that is done
    guessed: Guessed | None = None
    count: int = field(init=False)  # how many runs have it
    inputs: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = self.rows.size
        self.inputs = self.count if self.guessed is None else int(self.guessed.widths.sum())

    @property
    def living(self) -> int:
        """How many of its runs are not over."""
        return int(np.count_nonzero(self.runs._facts[NUMBER, self.rows] == self.numbers))

    @property
    def owners(self) -> list[QueueOwner]:
        """The instances of its runs that are not over."""
        rows = self.rows[self.runs._facts[NUMBER, self.rows] == self.numbers]
        return [run.queue.owner for row in rows.tolist() if (run := self.runs._runs[row])]

    @property
    def users(self) -> set[str]:
        """Their users."""
        return {owner.user for owner in self.owners}

    def answered(self, kind: str, answer: BatchResult, first: int) -> None:
        """Takes the result of one of the batches, in which the runs are the rows from `first`
        on.
        """
        if answer.error is not None:
            self.runs.failed(self, ApiError("internal", f"{kind} failed: {answer.error}"))
        if self.guessed is not None and answer.samples is not None:
            refused = {row - first: text for row, text in (answer.refused or {}).items()}
            self.runs.verified(self, self.guessed, answer.samples.tokens[first:], refused)
            return
        for row, text in (answer.refused or {}).items():
            if row >= first:
                error = ApiError(REFUSED_AS[kind], text)
                self.runs.failed(self, error, slice(row - first, row - first + 1))
        if answer.samples is not None:
            self.runs.came(self, answer.samples.tokens[first:])

    def took(self, seconds: float) -> None:
        """Takes note of how long it took, with what was before it at the worker."""
        self.runs.took(self, seconds)


class Formed(NamedTuple):
    """A step, and its batches."""

    steps: Steps
    embed: EmbedSampled
    forward: Forward
    sample: Sample
    drafts: EmbedText | None  # goes before the others


class Runs:
    """Runs under way. One is *parked* while the server may move its pages."""

    def __init__(
        self,
        page_size: int,
        finished: Callable[[RunCommand], None],
        drafts: range = range(0),
    ) -> None:
        """Has none yet.

        Args:
            page_size: slots of a page.
            finished: called with a run that is over.
            drafts: embeds for guessed tokens.
        """
        self._page_size = page_size
        self._finished = finished
        self._runs: list[RunCommand | None] = []  # by row
        self._free: list[int] = []  # rows
        # By row, what adds a span to its instance's time line; the run's `collect` trims that.
        self._note_span: list[Callable[[tuple[Any, ...]], None] | None] = []
        # A row that is free, or parked, may have no steps: its LIMIT is 0.
        self._facts: Int32 = np.zeros((len(FACTS), 0), np.int32)
        self._pages: Int32 = np.zeros((0, 8), np.int32)  # of each row, the first `PAGES` of them
        self._used: Int32 = np.zeros((0, 8), np.int32)  # filled slots of each
        self._stops: Int32 = np.zeros((0, MOST_STOPS), np.int32)  # tokens; the rest is NO_TOKEN
        self._tokens: Int32 = np.zeros((0, ROOM), np.int32)  # the first `FRESH` have come
        self._unnoted: dict[RunCommand, None] = {}  # have changed since, perhaps more than once
        self._plans = 0
        self._number = 0
        self._drafts = drafts
        self._guessers: dict[RunCommand, Guesser] = {}
        self._guesses: dict[int, list[int]] = {}  # of rows, for their next step
        self._verifying: set[int] = set()  # rows whose guesses are at the worker
        self._guessing: set[int] = set()  # these, and those that wait to guess
        self._price = Price()

    # Runs come and go

    def enter(self, run: RunCommand) -> None:
        """A run is the first of its queue: its first token has been asked for."""
        row = run.row = self._new_row()
        self._runs[row] = run
        timeline = run.queue.owner.timeline
        self._note_span[row] = None if timeline is None else timeline.spans.append
        self._number += 1
        facts = self._facts[:, row]
        facts[SAMPLER], facts[EMBED] = run.sampler.slot, run.embed
        facts[POSITION], facts[ADAPTER] = run.position, run.adapter
        facts[MASKED] = run.pages.masked
        facts[CURRENT], facts[PAGES] = run.pages.first, 0
        facts[CHOICE], facts[LAST] = run.step + 1, 0
        facts[SENT] = facts[CAME] = 1  # the first token comes before all others
        facts[FRESH], facts[NUMBER] = 0, self._number
        facts[STEP_COST] = run.sampler.cost
        facts[ATTENDS] = NO_SAMPLER if run.sampler.attend is None else run.sampler.slot
        self._stops[row] = NO_TOKEN
        if len(run.stops) <= MOST_STOPS:
            stops = [token for token in run.stops if token <= np.iinfo(np.int32).max]
            self._stops[row, : len(stops)] = stops
        self._place(run, row, run.pages.used)
        self._note(run, row)

    def _note(self, run: RunCommand, row: int) -> None:
        """Notes how far a run may go, and when it has to be looked at."""
        limit = 0 if run.queue.account.parked else run.limit
        if run in self._guessers:
            limit = self._guess(run, row, limit)
        self._facts[LIMIT, row] = limit
        self._facts[NOTICE, row] = run.notices

    def _note_changes(self) -> None:
        """Notes the same of all that have changed: before anything looks at their rows."""
        for run in self._unnoted:
            if (row := run.row) is not None:
                self._note(run, row)
        self._unnoted.clear()

    def _new_row(self) -> int:
        if not self._free:
            count = len(self._runs)
            more = max(8, count)
            self._free = list(range(count + more - 1, count - 1, -1))
            self._runs += [None] * more
            self._note_span += [None] * more
            below, right = ((0, more), (0, 0)), ((0, 0), (0, more))
            self._facts = np.pad(self._facts, right)
            self._pages, self._used = np.pad(self._pages, below), np.pad(self._used, below)
            self._stops, self._tokens = np.pad(self._stops, below), np.pad(self._tokens, below)
        return self._free.pop()

    def _place(self, run: RunCommand, row: int, used: Int32) -> None:
        """Notes the pages of a run, of which the first ones are filled so far."""
        pages = run.pages.pages
        self._make_wide(len(pages))
        self._pages[row, : len(pages)] = pages
        self._used[row, : len(used)] = used
        self._used[row, len(used) : len(pages)] = 0
        self._facts[PAGES, row] = len(pages)

    def _make_wide(self, pages: int) -> None:
        width = self._pages.shape[1]
        if pages > width:
            wider = ((0, 0), (0, max(pages, 2 * width) - width))
            self._pages, self._used = np.pad(self._pages, wider), np.pad(self._used, wider)

    def changed(self, run: RunCommand) -> None:
        """A run is over, or may go further, or has another waiter for tokens."""
        if run.over:
            self.drop(run)
            self._finished(run)
        else:
            self._unnoted[run] = None

    def drop(self, run: RunCommand) -> None:
        """A run has no more steps to do."""
        row = run.row
        if row is not None:
            self.collect(run)
            self._facts[LIMIT, row] = self._facts[NUMBER, row] = 0
            self._runs[row] = self._note_span[row] = None
            self._free.append(row)
            self._guesses.pop(row, None)
            self._verifying.discard(row)
            self._guessing.discard(row)
            run.row = None
        self._guessers.pop(run, None)

    # Pages that move

    def park(self, account: Account) -> None:
        """The pages of an instance may be moved from now on: its runs have no steps."""
        if account.parked:
            return
        account.parked = True
        for run in _runs_of(account):
            if run.row is not None:
                self._note(run, run.row)
                run.pages.show(self._used[run.row, : self._facts[PAGES, run.row]])

    def resume(self, account: Account) -> None:
        """The pages of an instance are back: its runs go on."""
        if not account.parked:
            return
        account.parked = False
        for run in _runs_of(account):
            row = run.row
            if row is None:
                continue
            try:
                run.pages.find_again()
            except ApiError as error:
                run.end(error)
                continue
            self._place(run, row, self._used[row, : self._facts[PAGES, row]].copy())
            self._note(run, row)

    # Answers

    def came(self, steps: Steps, tokens: Int32) -> None:
        """Takes the tokens of a step; looks at the runs for which something follows from theirs."""
        if self._unnoted:
            self._note_changes()
        self._came(steps, tokens, steps.rows, steps.numbers)

    def _came(self, steps: Steps, tokens: Int32, rows: Rows, numbers: Int32) -> None:
        facts = self._facts
        there = facts[NUMBER, rows] == numbers
        if not there.all():
            rows, tokens = rows[there], tokens[there]
        fresh, came = facts[FRESH, rows], facts[CAME, rows] + 1
        self._tokens[rows, fresh] = tokens
        facts[FRESH, rows] = fresh + 1
        facts[CAME, rows] = came
        noticed = came >= facts[NOTICE, rows]
        noticed |= (self._stops[rows] == tokens[:, None]).any(1)
        if steps.span is not None:
            for row in rows.tolist():
                if (note := self._note_span[row]) is not None:
                    note(steps.span)
        for row in rows[noticed].tolist():
            run = self._runs[row]
            if run is not None:
                self.collect(run)
                run.look()
                self._unnoted[run] = None
        self._unnoted.update(dict.fromkeys(self._guessers))

    def failed(self, steps: Steps, error: ApiError, some: slice = slice(None)) -> None:
        """Ends the runs of a step that has failed, or some of them."""
        for row, number in zip(steps.rows[some].tolist(), steps.numbers[some], strict=True):
            run = self._runs[row]
            if run is not None and self._facts[NUMBER, row] == number:
                run.end(error)

    def collect(self, run: RunCommand) -> None:
        """Gives a run the tokens that have come since it was looked at last."""
        row = run.row
        if row is not None and (fresh := self._facts.item(FRESH, row)):
            run.received.frombytes(self._tokens[row, :fresh].tobytes())
            self._facts[FRESH, row] = 0
            run.queue.owner.generated_tokens += fresh
            if (timeline := run.queue.owner.timeline) is not None:
                timeline.trim()

    def filled(self, run: RunCommand) -> int:
        """Slots that a run has filled and that its pages' pool does not count yet."""
        row = run.row
        if row is None or run.queue.account.parked:  # the pool has been told
            return 0
        used = self._used[row, run.pages.first : self._facts[PAGES, row]]
        return max(0, int(used.sum()) - run.pages.counted)  # guesses counted while they moved

    def undo(self, steps: Steps) -> None:
        """The newest step that is formed is not run: it is the next one again."""
        facts, rows = self._facts, steps.rows
        there = facts[NUMBER, rows] == steps.numbers
        rows, current = rows[there], steps.current[there]
        self._used[rows, current] -= 1
        facts[CURRENT, rows] = current
        for fact in (POSITION, SENT, CHOICE):
            facts[fact, rows] -= 1
        self._unnoted.update(dict.fromkeys(self._guessers))

    # Guesses

    def speculate(self, run: RunCommand, guesser: Guesser) -> None:
        """Has a run guess its next tokens from now on, unless it is over, or its choices depend on
        more than the text and how many there were before.
        """
        if run.over or not run.sampler.is_memoryless or not self._drafts:
            return
        self._guessers[run] = guesser
        self._unnoted[run] = None

    @property
    def guesses(self) -> bool:
        """Whether a run waits for tokens to guess, or for what has become of its guesses: then
        nothing is to be sent before.
        """
        if self._unnoted:
            self._note_changes()
        return bool(self._guessing)

    def _guess(self, run: RunCommand, row: int, limit: int) -> int:
        """Guesses the next tokens of a run if all its tokens are there and that pays; returns how
        far it may go meanwhile.
        """
        if row in self._verifying:
            return 0
        waited = row in self._guessing
        self._guesses.pop(row, None)
        self._guessing.discard(row)
        if not limit:
            return 0
        self.collect(run)
        guesser = self._guessers[run]
        guesser.read(run.received)
        sent, came = self._facts.item(SENT, row), self._facts.item(CAME, row)
        if len(run.received) < came:  # the first token has not come
            return limit
        most = min(limit - came - 1, len(self._drafts))
        guess = guesser.guess(most, self._price) if most > 0 else []
        if not guess:
            if waited:
                guesser.learn(1, 0, self._price)
            return limit
        self._guessing.add(row)
        if sent > came:
            return sent
        self._guesses[row] = guess
        return limit

    def _take_guesses(self, rows: Rows, most: int) -> Guessed | None:
        """What some rows guess, at most so many tokens, and pages for it as far as they are spare;
        None if they guess nothing.
        """
        room = min(most, len(self._drafts))
        costs = self._facts[STEP_COST][:, rows]
        time = OF_A_STEP - whole_cost(costs)  # that guesses' device programs may take
        widths = np.ones(rows.size, np.int32)
        drafts: list[int] = []
        for i, row in enumerate(rows.tolist()):
            guess = self._guesses.pop(row, [])[:room]
            if cost := costs.item(-1, i):
                guess = guess[: max(0, time // cost)]
            guess = guess[: self._slots(row, len(guess) + 1) - 1]
            time -= cost * len(guess)
            if guess:
                self._verifying.add(row)
                self._facts[LIMIT, row] = 0
            else:
                self._guessing.discard(row)
            room -= len(guess)
            widths[i] += len(guess)
            drafts += [*guess, NO_TOKEN]
        if len(drafts) == rows.size:
            return None
        return Guessed(widths, np.array(drafts, np.int32), self._filled(rows))

    def _slots(self, row: int, wanted: int) -> int:
        """How many slots a row can fill, of those that it wants, with pages that are spare."""
        facts, size = self._facts, self._page_size
        filled = self._used.item(row, facts.item(CURRENT, row))
        while True:
            room = (facts.item(PAGES, row) - facts.item(CURRENT, row)) * size - filled
            if room >= wanted or not self._take_spare_pages(np.array([row])):
                return min(room, wanted)

    def verified(
        self, steps: Steps, guessed: Guessed, tokens: Int32, refused: dict[int, str]
    ) -> None:
        """Takes the tokens of a step of which some were guessed, and why some choices failed."""
        if self._unnoted:
            self._note_changes()
        starts = np.cumsum(guessed.widths) - guessed.widths
        alone = guessed.widths == 1
        for i in np.flatnonzero(~alone).tolist():
            row, start = int(steps.rows[i]), int(starts[i])
            run = self._runs[row]
            if run is None or self._facts[NUMBER, row] != steps.numbers[i]:
                continue
            span = slice(start, start + int(guessed.widths[i]))
            stands = _standing(tokens[span].tolist(), guessed.drafts[span].tolist(), run.stops)
            self._accept(steps, i, run, stands)
            if (text := refused.get(start + len(stands) - 1)) is not None:
                run.end(ApiError(REFUSED_AS[Sample.kind], text))
        for i in np.flatnonzero(alone).tolist():
            if (text := refused.get(int(starts[i]))) is not None:
                self.failed(steps, ApiError(REFUSED_AS[Sample.kind], text), slice(i, i + 1))
        self._came(steps, tokens[starts[alone]], steps.rows[alone], steps.numbers[alone])

    def _accept(self, steps: Steps, i: int, run: RunCommand, stands: list[int]) -> None:
        """The `i`-th run of a step has some tokens; the last may be -1: none could be chosen."""
        assert steps.guessed is not None
        facts, row, width = self._facts, int(steps.rows[i]), int(steps.guessed.widths[i])
        self._verifying.discard(row)
        self._guessing.discard(row)
        self._guessers[run].learn(width - 1, len(stands) - 1, self._price)
        at, filled = int(steps.current[i]), int(steps.guessed.filled[i])
        end = filled + len(stands)
        for page in range(at, at + (filled + width - 1) // self._page_size + 1):
            self._used[row, page] = min(
                max(end - (page - at) * self._page_size, 0), self._page_size
            )
        facts[CURRENT, row] = at + end // self._page_size
        for fact in (POSITION, SENT, CHOICE):
            facts[fact, row] -= width - len(stands)
        self.collect(run)
        tokens = stands if stands[-1] >= 0 else stands[:-1]
        facts[CAME, row] += len(tokens)
        run.received.extend(tokens)
        run.queue.owner.generated_tokens += len(tokens)
        if steps.span is not None and (note := self._note_span[row]) is not None:
            note(steps.span)
        self._unnoted[run] = None
        if tokens:
            run.look()

    def took(self, steps: Steps, seconds: float) -> None:
        """Learns what a step took."""
        if self._guessers:
            guessing = 0
            if steps.guessed is not None:
                guessing = int(np.count_nonzero(steps.guessed.widths > 1))
            self._price.took(steps.count, guessing, steps.inputs - steps.count, seconds)

    # Steps

    @property
    def waits(self) -> bool:
        """Whether a run has a step to do."""
        if self._unnoted:
            self._note_changes()
        return bool((self._facts[SENT] < self._facts[LIMIT]).any())

    @property
    def due(self) -> int:
        """How many runs have a step to do."""
        if self._unnoted:
            self._note_changes()
        return int(np.count_nonzero(self._facts[SENT] < self._facts[LIMIT]))

    def step(self, most: int) -> Formed | None:
        """The next step of all runs that have one to do, at most so many of them."""
        if self._unnoted:
            self._note_changes()
        facts = self._facts
        rows = np.flatnonzero((facts[SENT] < facts[LIMIT]) & (facts[CURRENT] < facts[PAGES]))
        if not rows.size or most <= 0:
            return None
        rows = self._cut(rows, most)
        if facts[COST, rows].any():
            rows = self._affordable(rows)
        guessed = self._take_guesses(rows, most - rows.size) if self._guesses else None
        facts = self._facts[:, rows]
        if guessed is not None:
            return self._verify(rows, facts, guessed)
        forward = self._forward(rows, facts)
        embed = EmbedSampled(facts[SAMPLER], facts[POSITION], facts[EMBED])
        sample = Sample(
            embeds=facts[EMBED],
            samplers=facts[SAMPLER],
            steps=facts[CHOICE].view(np.uint32),
            top=np.zeros(rows.size, np.int32),
            masked=np.full(rows.size, -1, np.int32),
            masks=np.zeros((0, 0), np.uint32),
        )
        current = facts[CURRENT]
        filled = self._used[rows, current] + 1
        self._used[rows, current] = filled
        self._plans += 1
        self._facts[POSITION, rows] += 1
        self._facts[SENT, rows] += 1
        self._facts[CHOICE, rows] += 1
        self._facts[CURRENT, rows] += filled == self._page_size
        self._facts[LAST, rows] = self._plans
        return Formed(Steps(self, rows, facts[NUMBER], current), embed, forward, sample, None)

    def _verify(self, rows: Rows, facts: Int32, guessed: Guessed) -> Formed:
        """A step of rows with facts `[facts, n]`, some of which guess."""
        size, widths, drafts = self._page_size, guessed.widths, guessed.drafts
        firsts = np.cumsum(widths) - widths
        owners = np.repeat(np.arange(rows.size), widths)
        behind = (np.arange(owners.size) - firsts[owners]).astype(np.int32)  # a run's first input
        is_guess = behind > 0
        tokens = drafts[drafts >= 0]
        scratch = np.arange(self._drafts.start, self._drafts.start + tokens.size, dtype=np.int32)
        inputs = facts[EMBED, owners]
        inputs[is_guess] = scratch
        offsets = guessed.filled[owners] + behind
        pages = self._pages[rows[owners], facts[CURRENT, owners] + offsets // size]
        starts = np.append(firsts, owners.size).astype(np.int32)
        forward = replace(
            self._forward(rows, facts),
            input_starts=starts,
            inputs=inputs,
            output_slots=(pages * size + offsets % size).astype(np.int32),
            output_starts=starts,
            outputs=inputs,
        )
        sample = Sample(
            embeds=inputs,
            samplers=facts[SAMPLER, owners],
            steps=(facts[CHOICE, owners] + behind).view(np.uint32),
            top=np.zeros(owners.size, np.int32),
            masked=np.full(owners.size, -1, np.int32),
            masks=np.zeros((0, 0), np.uint32),
            drafts=drafts,
        )
        positions = (facts[POSITION, owners] + behind)[is_guess]
        self._plans += 1
        self._go_on(rows, widths, guessed.filled)
        self._facts[LAST, rows] = self._plans
        steps = Steps(self, rows, facts[NUMBER], facts[CURRENT], guessed=guessed)
        embed = EmbedSampled(facts[SAMPLER], facts[POSITION], facts[EMBED])
        return Formed(steps, embed, forward, sample, EmbedText(tokens, positions, scratch))

    def take_pages(self) -> None:
        """Takes the page that each run's next step needs, from other instances if need be.

        Those may be parked then, or ended.
        """
        if self._unnoted:
            self._note_changes()
        facts = self._facts
        lacking = (facts[SENT] < facts[LIMIT]) & (facts[CURRENT] == facts[PAGES])
        for row in np.flatnonzero(lacking).tolist():
            run = self._runs[row]
            if run is None or run.queue.account.parked:
                continue
            try:
                page = run.pages.take(run.page_came)
            except ApiError as error:
                run.end(error)
                continue
            if page is not None:
                self._add_page(row, page)

    def _take_spare_pages(self, rows: Rows) -> bool:
        """Takes the next page of each as far as they are spare; whether all have one."""
        for row in rows.tolist():
            run = self._runs[row]
            page = None if run is None else run.pages.take_spare()
            if page is None:
                return False
            self._add_page(row, page)
        return True

    def _add_page(self, row: int, page: int) -> None:
        count = self._facts.item(PAGES, row)
        self._make_wide(count + 1)
        self._pages[row, count], self._used[row, count] = page, 0
        self._facts[PAGES, row] = count + 1

    def _cut(self, rows: Rows, most: int) -> Rows:
        """Those that fit into one batch: higher priority first, then those that waited longest."""
        if rows.size <= most and self._facts[CURRENT, rows].sum() + rows.size <= MAX_CONTEXT_PAGES:
            return rows
        priorities = [run.queue.rank[0] for row in rows.tolist() if (run := self._runs[row])]
        order = np.lexsort((self._facts[LAST, rows], np.array(priorities)))
        rows = rows[order][:most]
        pages = np.cumsum(self._facts[CURRENT, rows] + 1)
        return np.sort(rows[: max(1, int(np.searchsorted(pages, MAX_CONTEXT_PAGES, "right")))])

    def _affordable(self, rows: Rows) -> Rows:
        """Those whose device programs fit into a step: of a user who waited longest first."""
        if whole_cost(self._facts[STEP_COST][:, rows]) <= OF_A_STEP:
            return rows
        order = np.argsort(self._facts[LAST, rows], kind="stable")
        users = [run.queue.owner.user if (run := self._runs[row]) else "" for row in rows[order]]
        fits = fitting(users, self._facts[STEP_COST][:, rows[order]], OF_A_STEP)
        return np.sort(rows[order[fits]])

    def further(self, first: Steps, most: int) -> list[tuple[Steps, Again]]:
        """Further steps of the runs of a step that has just been formed.

        None if there are other runs: those had no room, and would wait for all of these.

        Args:
            first: the step before.
            most: how many.
        """
        rests = [guesser.rests for run, guesser in self._guessers.items() if run.row is not None]
        most = min([most, *rests])
        if first.guessed is not None or self._guessing or most < 1:
            return []
        facts, rows, size = self._facts, first.rows, self._page_size
        due = facts[SENT] < facts[LIMIT]
        if (due & (facts[LAST] != self._plans) & (facts[CURRENT] < facts[PAGES])).any():
            return []
        if facts[CURRENT, rows].sum() + (2 + most // size) * rows.size > MAX_CONTEXT_PAGES:
            return []
        counts = self._room(rows, most)
        facts = facts[:, rows]
        filled = self._filled(rows)
        offsets = filled + np.arange(counts.max(initial=0))[:, None]  # [steps, n]
        current = facts[CURRENT] + offsets // size
        has = counts > np.arange(len(offsets))[:, None]
        pages = self._pages[rows, np.where(has, current, 0)]
        slots = np.where(has, pages * size + offsets % size, -1).astype(np.int32)
        self._go_on(rows, counts, filled)
        formed = []
        before = np.ones(rows.size, np.bool_)  # what has the step before
        for step, own in enumerate(has):
            steps = Steps(self, rows[own], facts[NUMBER, own], current[step, own])
            formed.append((steps, Again(slots[step, before])))
            before = own
        return formed

    def _filled(self, rows: Rows) -> Int32:
        """Filled slots of the page that each of some rows fills next, if that is there already."""
        current, pages = self._facts[CURRENT, rows], self._facts[PAGES, rows]
        there = current < pages
        return np.where(there, self._used[rows, np.where(there, current, 0)], 0)

    def _room(self, rows: Rows, most: int) -> Int32:
        """How many further steps each of some rows can have, and the pages for it.

        The step before is formed, and not sent: no page may move now.
        """
        facts, size = self._facts, self._page_size
        while True:
            current, pages = facts[CURRENT, rows], facts[PAGES, rows]
            filled = self._filled(rows)
            wanted = np.minimum(facts[LIMIT, rows] - facts[SENT, rows], most).clip(0)
            room = (pages - current) * size - filled
            lacking = rows[room < wanted]
            if not lacking.size or not self._take_spare_pages(lacking):
                room = (facts[PAGES, rows] - current) * size - filled
                counts: Int32 = np.minimum(wanted, room)
                return counts

    def _go_on(self, rows: Rows, counts: Int32, filled: Int32) -> None:
        """Notes that rows have so many steps, from a page on that is filled so far."""
        facts, size = self._facts, self._page_size
        current, total = facts[CURRENT, rows], filled + counts
        for page in range(int(total.max(initial=0)) // size + 1):
            slots = (total - page * size).clip(max=size)
            own = (slots > 0) & (counts > 0)
            self._used[rows[own], current[own] + page] = slots[own]
        facts[CURRENT, rows] += np.where(counts > 0, total // size, 0)
        for fact in (POSITION, SENT, CHOICE):
            facts[fact, rows] += counts

    def _forward(self, rows: Rows, facts: Int32) -> Forward:
        """The forward of rows with facts `[facts, n]`: one input each, into its own embed."""
        count, current = rows.size, facts[CURRENT]
        filled = self._used[rows, current]
        slots = self._pages[rows, current] * self._page_size + filled
        starts = np.zeros(count + 1, np.int32)
        np.cumsum(current + (filled > 0), out=starts[1:])  # an empty page need not be seen
        cells = np.repeat(rows * self._pages.shape[1] - starts[:-1], np.diff(starts))
        cells += np.arange(starts[-1])
        each = np.arange(count + 1, dtype=np.int32)
        adapters = facts[ADAPTER]
        attending = bool((facts[ATTENDS] != NO_SAMPLER).any())
        return Forward(
            input_starts=each,
            inputs=facts[EMBED],
            page_starts=starts,
            pages=self._pages.take(cells),
            page_used=self._used.take(cells),
            has_masked=facts[MASKED],
            output_slots=slots,
            output_starts=each,
            outputs=facts[EMBED],
            mask_starts=np.zeros(count + 1, np.int32),
            mask=NOTHING,
            adapters=adapters if (adapters != NO_ADAPTER).any() else NOTHING,
            attends=facts[ATTENDS] if attending else NOTHING,
            attend_steps=facts[CHOICE] if attending else NOTHING,
        )


def _standing(tokens: list[int], drafts: list[int], stops: frozenset[int]) -> list[int]:
    """Those of a run's tokens that are as if they had been chosen one by one."""
    for i, (token, draft) in enumerate(zip(tokens, drafts, strict=True)):
        if token != draft or token in stops or draft < 0:
            return tokens[: i + 1]
    raise ValueError("a run's last choice is guessed")


def _runs_of(account: Account) -> list[RunCommand]:
    """The runs of an instance that are first in their queues."""
    firsts = [queue.pending[0] for queue in account.active]
    return [first for first in firsts if isinstance(first, RunCommand)]
