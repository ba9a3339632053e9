"""A row of arrays for each run of one model: where it reads and writes, and how far it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.scheduler.batching import Order
from pie_control.scheduler.commands.command import NOTHING
from pie_control.scheduler.commands.forward import NO_ADAPTER, NO_SAMPLER
from pie_control.scheduler.commands.run import MOST_STOPS, ROOM, RunCommand
from pie_py.wire.plan import Float32, Forward, Int32

Rows: TypeAlias = NDArray[np.intp]

NO_TOKEN = -1


class Chosen(NamedTuple):
    """Choices of a step, an array `[n]` each."""

    tokens: Int32
    logprobs: Float32


class Facts(NamedTuple):
    """All that is known of runs, an array `[n]` each: where the next step reads and writes, how far
    a run is, and what has come of it.
    """

    sampler: Int32
    embed: Int32
    position: Int32
    adapter: Int32
    masked: Int32
    sent: Int32  # tokens that are there or under way
    limit: Int32  # tokens that may come for now; 0 of a row that is free, or parked
    current: Int32  # of its pages, that is filled next
    page_count: Int32
    choice: Int32  # tokens that the sampler has chosen, with the first
    last: Int32  # plan in which it had a step, or its user another one in its place
    stepped: Int32  # the last plan without room for all in which it had one, by their number
    came: Int32  # tokens
    check_at: Int32  # tokens that have to be there for the run to be looked at
    fresh: Int32  # tokens that have come since
    number: Int32  # of the run; 0 of a free row
    program: Int32  # these three are a `StepCost`
    once: Int32
    cost: Int32
    attends: Int32  # slot of the sampler whose program chooses what is read


_STEP_COST = slice(Facts._fields.index("program"), Facts._fields.index("cost") + 1)


class RunTable:
    """The rows of all runs of a model."""

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
        self._columns: Int32 = np.zeros((len(Facts._fields), 0), np.int32)
        self.facts = Facts(*self._columns)  # views of the same
        self.pages: Int32 = np.zeros((0, 8), np.int32)  # of each row, the first `page_count`
        self.used: Int32 = np.zeros((0, 8), np.int32)  # filled slots of each
        self.stops: Int32 = np.zeros((0, MOST_STOPS), np.int32)  # tokens; the rest is NO_TOKEN
        self.tokens: Int32 = np.zeros((0, ROOM), np.int32)  # the first `fresh` have come
        self.logprobs: Float32 = np.zeros((0, ROOM), np.float32)  # of these

    def new_row(self) -> int:
        """A row that no run has."""
        if not self.free:
            count = len(self.runs)
            more = max(8, count)
            self.free = list(range(count + more - 1, count - 1, -1))
            self.runs += [None] * more
            self.note_span += [None] * more
            below, right = ((0, more), (0, 0)), ((0, 0), (0, more))
            self._columns = np.pad(self._columns, right)
            self.facts = Facts(*self._columns)
            self.pages, self.used = np.pad(self.pages, below), np.pad(self.used, below)
            self.stops, self.tokens = np.pad(self.stops, below), np.pad(self.tokens, below)
            self.logprobs = np.pad(self.logprobs, below)
        return self.free.pop()

    def begin(self, row: int, **facts: int) -> None:
        """Sets what is known of a row; what is not given is 0."""
        self._columns[:, row] = [facts.get(name, 0) for name in Facts._fields]

    def facts_of(self, rows: Rows) -> Facts:
        """A copy of what is known of some rows."""
        return Facts(*self._columns[:, rows])

    def step_costs(self, rows: Rows) -> Int32:
        """The costs of some rows' device programs in a step, `[3, n]`, as `StepCost` has it."""
        costs: Int32 = self._columns[_STEP_COST][:, rows]
        return costs

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
        self.facts.page_count[row] = len(pages)

    def _make_wide(self, pages: int) -> None:
        width = self.pages.shape[1]
        if pages > width:
            wider = ((0, 0), (0, max(pages, 2 * width) - width))
            self.pages, self.used = np.pad(self.pages, wider), np.pad(self.used, wider)

    def collect(self, run: RunCommand) -> None:
        """Gives a run the tokens that have come since it was looked at last."""
        row = run.row
        if row is not None and (fresh := self.facts.fresh.item(row)):
            run.received.frombytes(self.tokens[row, :fresh].tobytes())
            run.logprobs.frombytes(self.logprobs[row, :fresh].tobytes())
            self.facts.fresh[row] = 0
            owner = run.queue.owner
            owner.generated_tokens += fresh
            if len(owner.timeline.spans) > owner.timeline.full:
                owner.timeline.trim()

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
        count = self.facts.page_count.item(row)
        self._make_wide(count + 1)
        self.pages[row, count], self.used[row, count] = page, 0
        self.facts.page_count[row] = count + 1

    def filled(self, rows: Rows) -> Int32:
        """Filled slots of the page that each of some rows fills next, if that is there already."""
        current, pages = self.facts.current[rows], self.facts.page_count[rows]
        there = current < pages
        return np.where(there, self.used[rows, np.where(there, current, 0)], 0)

    def go_on(self, rows: Rows, counts: Int32, filled: Int32) -> None:
        """Notes that rows have so many steps, from a page on that is filled so far."""
        facts, size = self.facts, self.page_size
        current, total = facts.current[rows], filled + counts
        for page in range(int(total.max(initial=0)) // size + 1):
            slots = (total - page * size).clip(max=size)
            own = (slots > 0) & (counts > 0)
            self.used[rows[own], current[own] + page] = slots[own]
        facts.current[rows] += np.where(counts > 0, total // size, 0)
        self.advance(rows, counts)

    def advance(self, rows: Rows | int, counts: Int32 | int) -> None:
        """Notes that rows are so many steps further, or back, but not in which pages."""
        facts = self.facts
        facts.position[rows] += counts
        facts.sent[rows] += counts
        facts.choice[rows] += counts

    def go_back(self, row: int, count: int) -> None:
        """Notes that so many steps of a row count no longer; none of its steps is under way."""
        facts = self.facts
        self.advance(row, -count)
        current = facts.current.item(row)
        while count:
            there = self.used.item(row, current) if current < facts.page_count.item(row) else 0
            self.used[row, current : current + 1] -= (undone := min(there, count))
            if count := count - undone:
                current -= 1
        facts.current[row] = current

    def forward(self, rows: Rows, facts: Facts) -> Forward:
        """The forward of rows with these facts: one input each, into its own embed."""
        count, current = rows.size, facts.current
        filled = self.used[rows, current]
        slots = self.pages[rows, current] * self.page_size + filled
        starts = np.zeros(count + 1, np.int32)
        np.cumsum(current + (filled > 0), out=starts[1:])  # an empty page need not be seen
        cells = np.repeat(rows * self.pages.shape[1] - starts[:-1], np.diff(starts))
        cells += np.arange(starts[-1])
        each = np.arange(count + 1, dtype=np.int32)
        adapters = facts.adapter
        attending = bool((facts.attends != NO_SAMPLER).any())
        return Forward(
            input_starts=each,
            inputs=facts.embed,
            page_starts=starts,
            pages=self.pages.take(cells),
            page_used=self.used.take(cells),
            has_masked=facts.masked,
            output_slots=slots,
            output_starts=each,
            outputs=facts.embed,
            mask_starts=np.zeros(count + 1, np.int32),
            mask=NOTHING,
            adapters=adapters if (adapters != NO_ADAPTER).any() else NOTHING,
            attends=facts.attends if attending else NOTHING,
            attend_steps=facts.choice if attending else NOTHING,
        )


def exchanged(table: RunTable, rows: Rows, order: Order, plan: int) -> Rows:
    """Rows of runs in the order of their turns, those of each user in their places exchanged.

    Their turns are exchanged, too: else a user whose runs were passed over would seem to have
    waited, and go before others.
    """
    facts, runs = table.facts, [table.runs[row] for row in rows.tolist()]
    grouped: dict[tuple[str, int], list[int]] = {}
    for place, run in enumerate(runs):
        user = (run.queue.owner.user, run.queue.rank[0]) if run else ("", 0)
        grouped.setdefault(user, []).append(place)
    rows = rows.copy()
    for places in grouped.values():
        own = rows[places]
        waiting = own[facts.stepped[own].argsort(kind="stable")]
        owners = [run.queue.owner for row in waiting.tolist() if (run := table.runs[row])]
        turns = facts.last[own]
        rows[places] = own = waiting[list(order(owners, plan))]
        facts.last[own] = turns
    return rows
