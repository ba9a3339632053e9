"""The runs of one model: a row each in tables of arrays, from which their steps are formed.

A plan of many runs costs a few operations of NumPy, not some objects for each run. Their steps are
rows of the same batches that commands are in: what decodes step by step, prompts and runs share one
forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.commands.command import NOTHING
from pie_control.commands.forward import MAX_CONTEXT_PAGES, NO_ADAPTER, ForwardCommand
from pie_control.commands.queue import Account, QueueOwner
from pie_control.commands.run import MOST_STOPS, ROOM, RunCommand
from pie_control.commands.sample import EmbedSampledCommand, SampleCommand
from pie_control.errors import ApiError
from pie_py.device_programs.program import COST_OF_A_STEP
from pie_py.wire.plan import Again, BatchResult, EmbedSampled, Forward, Int32, Sample

Rows: TypeAlias = NDArray[np.intp]

# What is known of a run, a row each: where its next step reads and writes, how far it is, and what
# has come of it.
FACTS = range(16)
SAMPLER, EMBED, POSITION, ADAPTER, MASKED, SENT, LIMIT, CURRENT, PAGES, CHOICE, LAST = FACTS[:11]
CAME, NOTICE, FRESH, NUMBER, COST = FACTS[11:]
NO_TOKEN = -1
# The batches of a step, with the code of a run's error if the worker refuses its row of one.
REFUSED_AS = {
    kind.kind: kind.refused_as for kind in (EmbedSampledCommand, ForwardCommand, SampleCommand)
}
STEP = tuple(REFUSED_AS)


@dataclass(slots=True, eq=False)
class Steps:
    """One step of some runs, as rows of three batches: `EmbedSampled`, `Forward`, `Sample`."""

    runs: Runs
    rows: Rows
    numbers: Int32  # of the runs: other ones may have the rows when the answer comes
    current: Int32  # of their pages, that the step fills
    span: tuple[Any, ...] | None = None  # of the forward, for time lines; once that is done
    count: int = field(init=False)  # how many runs have it

    def __post_init__(self) -> None:
        self.count = self.rows.size

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
        for row, text in (answer.refused or {}).items():
            if row >= first:
                error = ApiError(REFUSED_AS[kind], text)
                self.runs.failed(self, error, slice(row - first, row - first + 1))
        if answer.samples is not None:
            self.runs.came(self, answer.samples.tokens[first:])


class Formed(NamedTuple):
    """A step, and its batches."""

    steps: Steps
    embed: EmbedSampled
    forward: Forward
    sample: Sample


class Runs:
    """Runs under way. One is *parked* while the server may move its pages."""

    def __init__(self, page_size: int, finished: Callable[[RunCommand], None]) -> None:
        """Has none yet; calls `finished(run)` when a run is over."""
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
        facts[COST] = run.sampler.cost
        self._stops[row] = NO_TOKEN
        if len(run.stops) <= MOST_STOPS:
            stops = [token for token in run.stops if token <= np.iinfo(np.int32).max]
            self._stops[row, : len(stops)] = stops
        self._place(run, row, run.pages.used)
        self._note(run, row)

    def _note(self, run: RunCommand, row: int) -> None:
        """Notes how far a run may go, and when it has to be looked at."""
        self._facts[LIMIT, row] = 0 if run.queue.account.parked else run.limit
        self._facts[NOTICE, row] = run.notices

    def _note_changes(self) -> None:
        """Notes the same of all that have changed: before anything looks at their rows."""
        facts = self._facts
        for run in self._unnoted:
            if (row := run.row) is not None:
                facts[LIMIT, row] = 0 if run.queue.account.parked else run.limit
                facts[NOTICE, row] = run.notices
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
            run.row = None

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
        facts, rows = self._facts, steps.rows
        there = facts[NUMBER, rows] == steps.numbers
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
        return int(used.sum()) - run.pages.counted

    def undo(self, steps: Steps) -> None:
        """The newest step that is formed is not run: it is the next one again."""
        facts, rows = self._facts, steps.rows
        there = facts[NUMBER, rows] == steps.numbers
        rows, current = rows[there], steps.current[there]
        self._used[rows, current] -= 1
        facts[CURRENT, rows] = current
        for fact in (POSITION, SENT, CHOICE):
            facts[fact, rows] -= 1

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
        facts = facts[:, rows]
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
        return Formed(Steps(self, rows, facts[NUMBER], current), embed, forward, sample)

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
        """Those whose device programs fit into a step: who waited longest first, one at least."""
        order = np.argsort(self._facts[LAST, rows], kind="stable")
        costs = self._facts[COST, rows[order]].astype(np.int64)
        total = np.cumsum(costs)
        fits = (total <= COST_OF_A_STEP) | (costs == 0) | (total == costs)
        return np.sort(rows[order[fits]])

    def further(self, first: Steps, most: int) -> list[tuple[Steps, Again]]:
        """Further steps of the runs of a step that has just been formed.

        None if there are other runs: those had no room, and would wait for all of these.

        Args:
            first: the step before.
            most: how many.
        """
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
        )


def _runs_of(account: Account) -> list[RunCommand]:
    """The runs of an instance that are first in their queues."""
    firsts = [queue.pending[0] for queue in account.active]
    return [first for first in firsts if isinstance(first, RunCommand)]
