"""The runs of one model, from whose table their steps are formed: a row of arrays for each.

A plan of many runs costs a few operations of NumPy, not some objects for each run. Their steps are
rows of the same batches that commands are in: what decodes step by step, prompts and runs share one
forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from pie_control.errors import ApiError
from pie_control.scheduler.batching import Order
from pie_control.scheduler.commands.command import Account, QueueOwner
from pie_control.scheduler.commands.forward import MAX_CONTEXT_PAGES, NO_SAMPLER, ForwardCommand
from pie_control.scheduler.commands.run import MOST_STOPS, RunCommand
from pie_control.scheduler.commands.sample import EmbedSampledCommand, SampleCommand
from pie_control.scheduler.guesses import Guessed, Guesses, Known, masks_of
from pie_control.scheduler.run_table import NO_TOKEN, Chosen, Facts, Rows, RunTable, exchanged
from pie_control.scheduler.speculation import Guesser
from pie_py.device_programs.step_cost import OF_A_STEP, fitting, whole_cost
from pie_py.wire.plan import (
    Again,
    BatchResult,
    EmbedSampled,
    EmbedText,
    Forward,
    Int32,
    Sample,
    Samples,
)

# The batches of a step, with the code of a run's error if the worker refuses its row of one.
REFUSED_AS = {
    kind.kind: kind.refused_as for kind in (EmbedSampledCommand, ForwardCommand, SampleCommand)
}
STEP = tuple(REFUSED_AS)


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
        return int(np.count_nonzero(self.runs._table.facts.number[self.rows] == self.numbers))

    @property
    def owners(self) -> list[QueueOwner]:
        """The instances of its runs that are not over."""
        rows = self.rows[self.runs._table.facts.number[self.rows] == self.numbers]
        return [run.queue.owner for row in rows.tolist() if (run := self.runs._table.runs[row])]

    @property
    def users(self) -> set[str]:
        """Their users."""
        return {owner.user for owner in self.owners}

    def answered(self, kind: str, answer: BatchResult, first: int) -> None:
        """Takes the result of a batch, in which the runs are the rows from `first` on."""
        samples: Samples | None = answer.values
        if answer.error is not None:
            self.runs.failed(self, ApiError("internal", f"{kind} failed: {answer.error}"))
        if self.guessed is not None and samples is not None:
            refused = {row - first: text for row, text in (answer.refused or {}).items()}
            chosen = Chosen(samples.tokens[first:], samples.logprobs[first:])
            self.runs.verified(self, self.guessed, chosen, refused)
            return
        for row, text in (answer.refused or {}).items():
            if row >= first:
                error = ApiError(REFUSED_AS[kind], text)
                self.runs.failed(self, error, slice(row - first, row - first + 1))
        if samples is not None:
            self.runs.look_at_changes()
            chosen = Chosen(samples.tokens[first:], samples.logprobs[first:])
            self.runs.came(self, chosen, self.rows, self.numbers)


class Formed(NamedTuple):
    """A step, and its batches."""

    steps: Steps
    embed: EmbedSampled
    forward: Forward
    sample: Sample
    texts: list[EmbedText]  # guesses, and what takes the place of tokens: behind `embed`


class Runs:
    """Runs under way. One is *parked* while the server may move its pages."""

    def __init__(
        self,
        page_size: int,
        finished: Callable[[RunCommand], None],
        order: Order,
        drafts: range = range(0),
        vocabulary: int = 0,
    ) -> None:
        """Has none yet.

        Args:
            page_size: slots of a page.
            finished: called with a run that is over.
            order: of one user's runs, where there is not room for all.
            drafts: embeds for guessed tokens.
            vocabulary: how many tokens there are.
        """
        self._vocabulary = vocabulary
        self._knowing: set[RunCommand] = set()  # the next token of which may be known
        self._table = RunTable(page_size)
        self.collect = self._table.collect
        self._finished = finished
        self._order = order
        # Those that have changed since, perhaps more than once.
        self._changed_runs: dict[RunCommand, None] = {}
        self._plans = 0
        self._cuts = 0  # plans in which some had no room
        self._number = 0
        self._guesses = Guesses(self._table, drafts)
        self._corrected: dict[RunCommand, int] = {}  # by which token their next step goes on

    # Runs come and go

    def enter(self, run: RunCommand) -> None:
        """A run is the first of its queue: its first token has been asked for."""
        row = run.row = self._table.new_row()
        self._table.runs[row] = run
        self._table.note_span[row] = run.queue.owner.timeline.spans.append
        self._number += 1
        sampler = run.sampler
        program, once, cost = sampler.cost
        self._table.begin(
            row,
            sampler=sampler.slot,
            embed=run.embed,
            position=run.position,
            adapter=run.adapter,
            masked=run.pages.masked,
            sent=1,  # the first token comes before all others
            came=1,
            current=run.pages.first,
            choice=run.step + 1,
            stepped=self._cuts,
            number=self._number,
            program=program,
            once=once,
            cost=cost,
            attends=NO_SAMPLER if sampler.attend is None else sampler.slot,
        )
        self._table.stops[row] = NO_TOKEN
        if len(run.stops) <= MOST_STOPS:
            stops = [token for token in run.stops if token <= np.iinfo(np.int32).max]
            self._table.stops[row, : len(stops)] = stops
        self._table.place(run, row, run.pages.used)
        if run.known:
            self._knowing.add(run)
            if run.sampler.is_memoryless and self._guesses.room:
                self._guesses.guessers[run] = Known(run.known)
        self._set_bounds(run, row)

    def _set_bounds(self, run: RunCommand, row: int) -> None:
        """Notes how far a run may go, and when it has to be looked at."""
        limit = 0 if run.queue.account.parked else run.limit
        if run in self._guesses.guessers:
            limit = self._guesses.guess(run, row, limit)
        self._table.facts.limit[row] = limit
        self._table.facts.check_at[row] = run.check_at

    def look_at_changes(self) -> None:
        """Notes the same of all that have changed: before anything looks at their rows."""
        while self._changed_runs:
            changed, self._changed_runs = self._changed_runs, {}
            for run in changed:
                if (row := run.row) is not None:
                    self._set_bounds(run, row)  # which may let a run go on that drafts

    def changed(self, run: RunCommand) -> None:
        """A run is over, or may go further, or has another waiter for tokens."""
        if run.over:
            self.drop(run)
            self._finished(run)
        else:
            self._changed_runs[run] = None

    def drop(self, run: RunCommand) -> None:
        """A run has no more steps to do."""
        row = run.row
        if row is not None:
            self._table.collect(run)
            self._table.facts.limit[row] = self._table.facts.number[row] = 0
            self._table.free_row(row)
            self._guesses.drop(row)
            run.row = None
        self._guesses.guessers.pop(run, None)
        self._corrected.pop(run, None)
        self._knowing.discard(run)

    # Pages that move

    def park(self, account: Account) -> None:
        """The pages of an instance may be moved from now on: its runs have no steps."""
        if account.parked:
            return
        account.parked = True
        for run in _runs_of(account):
            if run.row is not None:
                self._set_bounds(run, run.row)
                run.pages.show(self._table.used[run.row, : self._table.facts.page_count[run.row]])

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
            self._table.place(
                run, row, self._table.used[row, : self._table.facts.page_count[row]].copy()
            )
            self._set_bounds(run, row)

    # Answers

    def came(self, steps: Steps, chosen: Chosen, rows: Rows, numbers: Int32) -> None:
        """Takes the tokens of a step, of rows that had runs with these numbers; looks at the runs
        for which something follows from theirs.
        """
        facts = self._table.facts
        there = facts.number[rows] == numbers
        tokens, logprobs = chosen
        if not there.all():
            rows, tokens, logprobs = rows[there], tokens[there], logprobs[there]
        fresh, came = facts.fresh[rows], facts.came[rows] + 1
        self._table.tokens[rows, fresh] = tokens
        self._table.logprobs[rows, fresh] = logprobs
        facts.fresh[rows] = fresh + 1
        facts.came[rows] = came
        checked = came >= facts.check_at[rows]
        checked |= (self._table.stops[rows] == tokens[:, None]).any(1)
        if steps.span is not None:
            for row in rows.tolist():
                if (note := self._table.note_span[row]) is not None:
                    note(steps.span)
        for row in rows[checked].tolist():
            run = self._table.runs[row]
            if run is not None:
                self._table.collect(run)
                run.look()
                self._changed_runs[run] = None
        self._changed_runs.update(dict.fromkeys(self._guesses.guessers))

    def failed(self, steps: Steps, error: ApiError, some: slice = slice(None)) -> None:
        """Ends the runs of a step that has failed, or some of them."""
        for row, number in zip(steps.rows[some].tolist(), steps.numbers[some], strict=True):
            run = self._table.runs[row]
            if run is not None and self._table.facts.number[row] == number:
                run.end(error)

    def filled(self, run: RunCommand) -> int:
        """Slots that a run has filled and that its pages' pool does not count yet."""
        row = run.row
        if row is None or run.queue.account.parked:  # the pool has been told
            return 0
        used = self._table.used[row, run.pages.first : self._table.facts.page_count[row]]
        return max(0, int(used.sum()) - run.pages.counted)  # guesses counted while they moved

    def asked(self, run: RunCommand) -> int:
        """Tokens of a run that are there or under way; the first one is, once it is queued."""
        return 1 if run.row is None else self._table.facts.sent.item(run.row)

    def undo(self, steps: Steps) -> None:
        """The newest step that is formed is not run: it is the next one again."""
        facts, rows = self._table.facts, steps.rows
        there = facts.number[rows] == steps.numbers
        rows, current = rows[there], steps.current[there]
        self._table.used[rows, current] -= 1
        facts.current[rows] = current
        self._table.advance(rows, -1)
        self._changed_runs.update(dict.fromkeys(self._guesses.guessers))

    # Guesses

    def speculate(self, run: RunCommand, guesser: Guesser) -> None:
        """Has a run guess its next tokens from now on, unless it is over, or its choices depend on
        more than the text and how many there were before.
        """
        if not run.over and run.sampler.is_memoryless and self._guesses.room:
            before = self._guesses.guessers.get(run)
            if isinstance(before, Known) and not before.is_over:
                before.then = guesser
            else:
                self._guesses.guessers[run] = guesser
            self._changed_runs[run] = None

    def correct(self, run: RunCommand, count: int, token: int) -> None:
        """A run that has no steps under way goes on as if a token had been its number `count`."""
        if run.row is not None:
            undone = self._table.facts.came.item(run.row) - 1 - count
            self._table.go_back(run.row, undone)
            self._table.facts.came[run.row] -= undone
        self._corrected[run] = token

    def _corrections(self, rows: Rows, facts: Facts) -> list[EmbedText]:
        """Tokens that rows with these facts go on with, though they have chosen others."""
        runs = [self._table.runs[row] for row in rows.tolist()] if self._corrected else []
        places = [i for i, run in enumerate(runs) if run in self._corrected]
        if not places:
            return []
        tokens = [self._corrected.pop(run) for i in places if (run := runs[i])]
        return [EmbedText(np.array(tokens, np.int32), facts.position[places], facts.embed[places])]

    @property
    def guesses(self) -> bool:
        """True if a run waits for tokens to guess, or for its guesses: nothing is sent before."""
        self.look_at_changes()
        return bool(self._guesses.guessing)

    def verified(
        self, steps: Steps, guessed: Guessed, chosen: Chosen, refused: dict[int, str]
    ) -> None:
        """Takes the tokens of a step of which some were guessed, and why some choices failed."""
        self.look_at_changes()
        starts = np.cumsum(guessed.widths) - guessed.widths
        alone = guessed.widths == 1
        for i in np.flatnonzero(~alone).tolist():
            row, start = int(steps.rows[i]), int(starts[i])
            run = self._table.runs[row]
            if run is None or self._table.facts.number[row] != steps.numbers[i]:
                continue
            own = slice(start, start + int(guessed.widths[i]))
            stands = self._guesses.accept(
                guessed, i, run, row, Chosen(chosen.tokens[own], chosen.logprobs[own])
            )
            if steps.span is not None and (note := self._table.note_span[row]) is not None:
                note(steps.span)
            self._changed_runs[run] = None
            if stands != [NO_TOKEN]:
                run.look()
            if (text := refused.get(start + len(stands) - 1)) is not None:
                run.end(ApiError(REFUSED_AS[Sample.kind], text))
        for i in np.flatnonzero(alone).tolist():
            if (text := refused.get(int(starts[i]))) is not None:
                self.failed(steps, ApiError(REFUSED_AS[Sample.kind], text), slice(i, i + 1))
        lone = Chosen(*(each[starts[alone]] for each in chosen))
        self.came(steps, lone, steps.rows[alone], steps.numbers[alone])

    def took(self, steps: Steps, seconds: float) -> None:
        """Learns what a step took, with what was before it at the worker."""
        if self._guesses.guessers:
            guessing = 0
            if steps.guessed is not None:
                guessing = int(np.count_nonzero(steps.guessed.widths > 1))
            self._guesses.price.took(steps.count, guessing, steps.inputs - steps.count, seconds)

    # Steps

    @property
    def waits(self) -> bool:
        """True if a run has a step to do."""
        self.look_at_changes()
        return bool((self._table.facts.sent < self._table.facts.limit).any())

    @property
    def due(self) -> int:
        """How many runs have a step to do."""
        self.look_at_changes()
        return int(np.count_nonzero(self._table.facts.sent < self._table.facts.limit))

    def step(self, most: int) -> Formed | None:
        """The next step of all runs that have one to do, at most so many of them."""
        self.look_at_changes()
        facts = self._table.facts
        rows = np.flatnonzero((facts.sent < facts.limit) & (facts.current < facts.page_count))
        if not rows.size or most <= 0:
            return None
        rows = self._cut(rows, most)
        if facts.cost[rows].any():
            rows = self._affordable(rows)
        guessed = self._guesses.take(rows, most - rows.size)
        facts = self._table.facts_of(rows)
        embed = EmbedSampled(facts.sampler, facts.position, facts.embed)
        texts = self._corrections(rows, facts)
        if guessed is not None:
            drafts, forward, sample = self._guesses.batches(rows, facts, guessed)
            texts.append(drafts)
        else:
            forward = self._table.forward(rows, facts)
            sample = Sample(
                embeds=facts.embed,
                samplers=facts.sampler,
                steps=facts.choice.view(np.uint32),
                top=np.zeros(rows.size, np.int32),
                masked=np.full(rows.size, -1, np.int32),
                masks=np.zeros((0, 0), np.uint32),
            )
            filled = self._table.used[rows, facts.current] + 1
            self._table.used[rows, facts.current] = filled
            self._table.advance(rows, 1)
            self._table.facts.current[rows] += filled == self._table.page_size
        if self._knowing:
            sample = self._knowingly(sample, rows, facts, guessed)
        self._plans += 1
        self._table.facts.last[rows] = self._plans
        steps = Steps(self, rows, facts.number, facts.current, guessed=guessed)
        return Formed(steps, embed, forward, sample, texts)

    def _knowingly(
        self, sample: Sample, rows: Rows, facts: Facts, guessed: Guessed | None
    ) -> Sample:
        """The choices of rows with these facts, of which runs know some."""
        widths = np.ones(rows.size, np.int32) if guessed is None else guessed.widths
        owners = np.repeat(np.arange(rows.size), widths)
        behind = np.arange(owners.size) - (np.cumsum(widths) - widths)[owners]
        runs = [self._table.runs[row] for row in rows[owners].tolist()]
        numbers = (facts.sent[owners] + behind).tolist()
        masked, masks = masks_of(runs, numbers, self._vocabulary)
        self._knowing = {run for run in self._knowing if len(run.received) < len(run.known)}
        return replace(sample, masked=masked, masks=masks)

    def take_pages(self) -> None:
        """Takes the page that each run's next step needs, from other instances if need be.

        Those may be parked then, or ended.
        """
        self.look_at_changes()
        facts = self._table.facts
        lacking = (facts.sent < facts.limit) & (facts.current == facts.page_count)
        for row in np.flatnonzero(lacking).tolist():
            run = self._table.runs[row]
            if run is None or run.queue.account.parked:
                continue
            try:
                page = run.pages.take(run.page_came)
            except ApiError as error:
                run.end(error)
                continue
            if page is not None:
                self._table.add_page(row, page)

    def _cut(self, rows: Rows, most: int) -> Rows:
        """Those that fit into a batch: by priority, the longest waiting, or one user's first."""
        facts, runs = self._table.facts, self._table.runs
        if rows.size <= most and facts.current[rows].sum() + rows.size <= MAX_CONTEXT_PAGES:
            return rows
        priorities = [run.queue.rank[0] for row in rows.tolist() if (run := runs[row])]
        order = np.lexsort((facts.last[rows], np.array(priorities)))
        self._cuts += 1
        rows = exchanged(self._table, rows[order], self._order, self._cuts)[:most]
        pages = np.cumsum(facts.current[rows] + 1)
        rows = rows[: max(1, int(np.searchsorted(pages, MAX_CONTEXT_PAGES, "right")))]
        facts.stepped[rows] = self._cuts
        return np.sort(rows)

    def _affordable(self, rows: Rows) -> Rows:
        """Those whose device programs fit into a step: of a user who waited longest first."""
        facts, runs = self._table.facts, self._table.runs
        if whole_cost(self._table.step_costs(rows)) <= OF_A_STEP:
            return rows
        order = np.argsort(facts.last[rows], kind="stable")
        users = [run.queue.owner.user if (run := runs[row]) else "" for row in rows[order]]
        fits = fitting(users, self._table.step_costs(rows[order]), OF_A_STEP)
        return np.sort(rows[order[fits]])

    def further(self, first: Steps, most: int) -> list[tuple[Steps, Again]]:
        """Further steps of the runs of a step that has just been formed.

        None if there are other runs: those had no room, and would wait for all of these.

        Args:
            first: the step before.
            most: how many.
        """
        rests = [
            guesser.rests for run, guesser in self._guesses.guessers.items() if run.row is not None
        ]
        most = min([most, *rests])
        if first.guessed is not None or self._guesses.guessing or self._knowing or most < 1:
            return []
        facts, rows, size = self._table.facts, first.rows, self._table.page_size
        due = facts.sent < facts.limit
        if (due & (facts.last != self._plans) & (facts.current < facts.page_count)).any():
            return []
        if facts.current[rows].sum() + (2 + most // size) * rows.size > MAX_CONTEXT_PAGES:
            return []
        counts = self._room(rows, most)
        facts = self._table.facts_of(rows)
        filled = self._table.filled(rows)
        offsets = filled + np.arange(counts.max(initial=0))[:, None]  # [steps, n]
        current = facts.current + offsets // size
        has = counts > np.arange(len(offsets))[:, None]
        pages = self._table.pages[rows, np.where(has, current, 0)]
        slots = np.where(has, pages * size + offsets % size, -1).astype(np.int32)
        self._table.go_on(rows, counts, filled)
        formed = []
        before = np.ones(rows.size, np.bool_)  # what has the step before
        for step, own in enumerate(has):
            steps = Steps(self, rows[own], facts.number[own], current[step, own])
            formed.append((steps, Again(slots[step, before])))
            before = own
        return formed

    def _room(self, rows: Rows, most: int) -> Int32:
        """How many further steps each of some rows can have, and the pages for it.

        The step before is formed, and not sent: no page may move now.
        """
        facts, size = self._table.facts, self._table.page_size
        while True:
            current, pages = facts.current[rows], facts.page_count[rows]
            filled = self._table.filled(rows)
            wanted = np.minimum(facts.limit[rows] - facts.sent[rows], most).clip(0)
            room = (pages - current) * size - filled
            lacking = rows[room < wanted]
            if not lacking.size or not self._table.take_spare_pages(lacking):
                room = (facts.page_count[rows] - current) * size - filled
                counts: Int32 = np.minimum(wanted, room)
                return counts


def _runs_of(account: Account) -> list[RunCommand]:
    """The runs of an instance that are first in their queues."""
    firsts = [queue.pending[0] for queue in account.active]
    return [first for first in firsts if isinstance(first, RunCommand)]
