"""A row of arrays for each run of one model: where it reads and writes, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.scheduler.commands.command import NOTHING
from pie_control.scheduler.commands.forward import NO_ADAPTER, NO_SAMPLER
from pie_control.scheduler.commands.run import MOST_STOPS, ROOM, RunCommand
from pie_py.wire.plan import Forward, Int32

Rows: TypeAlias = NDArray[np.intp]

# What is known of a run, a row each: where its next step reads and writes, how far it is, and what
# has come of it.
FACTS = range(19)
SAMPLER, EMBED, POSITION, ADAPTER, MASKED, SENT, LIMIT, CURRENT, PAGES, CHOICE, LAST = FACTS[:11]
CAME, NOTICE, FRESH, NUMBER, PROGRAM, ONCE, COST, ATTENDS = FACTS[11:]
STEP_COST = [PROGRAM, ONCE, COST]  # as `StepCost` has it
NO_TOKEN = -1


class RunTable:
    """The rows. One that is free, or parked, may have no steps: its LIMIT is 0."""

    def __init__(self, page_size: int) -> None:
        """Has no rows yet.

        Args:
            page_size: slots of a page.
        """
        self.page_size = page_size
        self.runs: list[RunCommand | None] = []  # by row
        self.free: list[int] = []  # rows
        # By row, what adds a span to its instance's time line; the run's `collect` trims that.
        self.note_span: list[Callable[[tuple[Any, ...]], None] | None] = []
        self.facts: Int32 = np.zeros((len(FACTS), 0), np.int32)
        self.pages: Int32 = np.zeros((0, 8), np.int32)  # of each row, the first `PAGES` of them
        self.used: Int32 = np.zeros((0, 8), np.int32)  # filled slots of each
        self.stops: Int32 = np.zeros((0, MOST_STOPS), np.int32)  # tokens; the rest is NO_TOKEN
        self.tokens: Int32 = np.zeros((0, ROOM), np.int32)  # the first `FRESH` have come

    def new_row(self) -> int:
        """A row that no run has."""
        if not self.free:
            count = len(self.runs)
            more = max(8, count)
            self.free = list(range(count + more - 1, count - 1, -1))
            self.runs += [None] * more
            self.note_span += [None] * more
            below, right = ((0, more), (0, 0)), ((0, 0), (0, more))
            self.facts = np.pad(self.facts, right)
            self.pages, self.used = np.pad(self.pages, below), np.pad(self.used, below)
            self.stops, self.tokens = np.pad(self.stops, below), np.pad(self.tokens, below)
        return self.free.pop()

    def free_row(self, row: int) -> None:
        """Takes back the row of a run that has left."""
        self.runs[row] = self.note_span[row] = None
        self.free.append(row)

    def place(self, run: RunCommand, row: int, used: Int32) -> None:
        """Notes the pages of a run, of which the first ones are filled so far."""
        pages = run.pages.pages
        self._make_wide(len(pages))
        self.pages[row, : len(pages)] = pages
        self.used[row, : len(used)] = used
        self.used[row, len(used) : len(pages)] = 0
        self.facts[PAGES, row] = len(pages)

    def _make_wide(self, pages: int) -> None:
        width = self.pages.shape[1]
        if pages > width:
            wider = ((0, 0), (0, max(pages, 2 * width) - width))
            self.pages, self.used = np.pad(self.pages, wider), np.pad(self.used, wider)

    def collect(self, run: RunCommand) -> None:
        """Gives a run the tokens that have come since it was looked at last."""
        row = run.row
        if row is not None and (fresh := self.facts.item(FRESH, row)):
            run.received.frombytes(self.tokens[row, :fresh].tobytes())
            self.facts[FRESH, row] = 0
            run.queue.owner.generated_tokens += fresh
            if (timeline := run.queue.owner.timeline) is not None:
                timeline.trim()

    def take_spare_pages(self, rows: Rows) -> bool:
        """Takes the next page of each as far as they are spare; whether all have one."""
        for row in rows.tolist():
            run = self.runs[row]
            page = None if run is None else run.pages.take_spare()
            if page is None:
                return False
            self.add_page(row, page)
        return True

    def add_page(self, row: int, page: int) -> None:
        """Puts a page behind those of a row."""
        count = self.facts.item(PAGES, row)
        self._make_wide(count + 1)
        self.pages[row, count], self.used[row, count] = page, 0
        self.facts[PAGES, row] = count + 1

    def filled(self, rows: Rows) -> Int32:
        """Filled slots of the page that each of some rows fills next, if that is there already."""
        current, pages = self.facts[CURRENT, rows], self.facts[PAGES, rows]
        there = current < pages
        return np.where(there, self.used[rows, np.where(there, current, 0)], 0)

    def go_on(self, rows: Rows, counts: Int32, filled: Int32) -> None:
        """Notes that rows have so many steps, from a page on that is filled so far."""
        facts, size = self.facts, self.page_size
        current, total = facts[CURRENT, rows], filled + counts
        for page in range(int(total.max(initial=0)) // size + 1):
            slots = (total - page * size).clip(max=size)
            own = (slots > 0) & (counts > 0)
            self.used[rows[own], current[own] + page] = slots[own]
        facts[CURRENT, rows] += np.where(counts > 0, total // size, 0)
        for fact in (POSITION, SENT, CHOICE):
            facts[fact, rows] += counts

    def go_back(self, row: int, count: int) -> None:
        """Notes that so many steps of a row count no longer; none of its steps is under way."""
        facts = self.facts
        for fact in (POSITION, SENT, CHOICE):
            facts[fact, row] -= count
        current = facts.item(CURRENT, row)
        while count:
            there = self.used.item(row, current) if current < facts.item(PAGES, row) else 0
            self.used[row, current : current + 1] -= (undone := min(there, count))
            if count := count - undone:
                current -= 1
        facts[CURRENT, row] = current

    def forward(self, rows: Rows, facts: Int32) -> Forward:
        """The forward of rows with facts `[facts, n]`: one input each, into its own embed."""
        count, current = rows.size, facts[CURRENT]
        filled = self.used[rows, current]
        slots = self.pages[rows, current] * self.page_size + filled
        starts = np.zeros(count + 1, np.int32)
        np.cumsum(current + (filled > 0), out=starts[1:])  # an empty page need not be seen
        cells = np.repeat(rows * self.pages.shape[1] - starts[:-1], np.diff(starts))
        cells += np.arange(starts[-1])
        each = np.arange(count + 1, dtype=np.int32)
        adapters = facts[ADAPTER]
        attending = bool((facts[ATTENDS] != NO_SAMPLER).any())
        return Forward(
            input_starts=each,
            inputs=facts[EMBED],
            page_starts=starts,
            pages=self.pages.take(cells),
            page_used=self.used.take(cells),
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
