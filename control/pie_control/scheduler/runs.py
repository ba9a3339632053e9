"""The runs of one model: a row each in tables of arrays, from which their steps are formed.

A plan of many runs costs a few operations of NumPy, not some objects for each run. Their steps are
rows of the same batches that commands are in: what decodes step by step, prompts and runs share one
forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.commands.command import NOTHING
from pie_control.commands.forward import MAX_CONTEXT_PAGES, NO_ADAPTER
from pie_control.commands.kinds import BY_WIRE_KIND
from pie_control.commands.queue import Account
from pie_control.commands.run import RunCommand
from pie_control.errors import ApiError
from pie_py.wire.plan import BatchResult, EmbedSampled, Forward, Int32, Sample

Rows: TypeAlias = NDArray[np.intp]

# What is known of a run, a column each: where its next step reads and writes, and how far it is.
SAMPLER, EMBED, POSITION, ADAPTER, MASKED, SENT, LIMIT, CURRENT, PAGES, CHOICE, LAST = range(11)
COLUMNS = 11


@dataclass(frozen=True, slots=True)
class Steps:
    """One step of some runs, as rows of three batches."""

    runs: list[RunCommand]
    embed: EmbedSampled
    forward: Forward
    sample: Sample

    def answered(self, kind: str, answer: BatchResult, first: int) -> None:
        """Takes the result of one of the batches, in which the runs are the rows from `first`
        on.
        """
        if answer.error is not None:
            for run in self.runs:
                run.end(ApiError("internal", f"{kind} failed: {answer.error}"))
        for row, text in (answer.refused or {}).items():
            if row >= first:
                self.runs[row - first].end(ApiError(BY_WIRE_KIND[kind].refused_as, text))
        if answer.samples is not None:
            tokens = answer.samples.tokens[first:].tolist()
            for run, token in zip(self.runs, tokens, strict=True):
                if not run.over:
                    run.arrived(token)


class Runs:
    """Runs under way. One is *parked* while the server may move its pages."""

    def __init__(self, page_size: int, finished: Callable[[RunCommand], None]) -> None:
        """Takes what is told of runs that are over."""
        self._page_size = page_size
        self._finished = finished
        self._runs: list[RunCommand | None] = []  # by row
        self._free: list[int] = []  # rows
        self._active: NDArray[np.bool_] = np.zeros(0, np.bool_)  # in use, and not parked
        self._facts: Int32 = np.zeros((COLUMNS, 0), np.int32)
        self._pages: Int32 = np.zeros((0, 8), np.int32)  # of each row, the first `PAGES` of them
        self._used: Int32 = np.zeros((0, 8), np.int32)  # filled slots of each
        self._plans = 0

    # Runs come and go

    def enter(self, run: RunCommand) -> None:
        """A run is the first of its queue: its first token has been asked for."""
        row = run.row = self._new_row()
        self._runs[row] = run
        sent, parked = 1, run.queue.account.parked
        facts = self._facts[:, row]
        facts[SAMPLER], facts[EMBED] = run.sampler.slot, run.embed
        facts[POSITION], facts[ADAPTER] = run.position, run.adapter
        facts[MASKED] = run.pages.masked
        facts[SENT], facts[LIMIT] = sent, run.limit
        facts[CURRENT], facts[PAGES] = run.pages.first, 0
        facts[CHOICE], facts[LAST] = run.step + 1, 0
        self._place(run, row, run.pages.used)
        run.parked = parked
        self._active[row] = not parked

    def _new_row(self) -> int:
        if not self._free:
            count = len(self._runs)
            more = max(8, count)
            self._free = list(range(count + more - 1, count - 1, -1))
            self._runs += [None] * more
            self._active = np.concatenate([self._active, np.zeros(more, np.bool_)])
            self._facts = np.concatenate([self._facts, np.zeros((COLUMNS, more), np.int32)], 1)
            wider = np.zeros((more, self._pages.shape[1]), np.int32)
            self._pages = np.concatenate([self._pages, wider])
            self._used = np.concatenate([self._used, wider])
        return self._free.pop()

    def _place(self, run: RunCommand, row: int, used: Int32) -> None:
        """Notes the pages of a run, of which the first ones are filled as told."""
        pages = run.pages.pages
        if len(pages) > self._pages.shape[1]:
            wider = ((0, 0), (0, max(len(pages), 2 * self._pages.shape[1]) - self._pages.shape[1]))
            self._pages, self._used = np.pad(self._pages, wider), np.pad(self._used, wider)
        self._pages[row, : len(pages)] = pages
        self._used[row, : len(used)] = used
        self._used[row, len(used) : len(pages)] = 0
        self._facts[PAGES, row] = len(pages)

    def changed(self, run: RunCommand) -> None:
        """A run is over, or may go further than before."""
        if run.over:
            self.drop(run)
            self._finished(run)
        elif run.row is not None:
            self._facts[LIMIT, run.row] = run.limit

    def drop(self, run: RunCommand) -> None:
        """A run has no more steps to do."""
        if run.row is not None:
            self._active[run.row] = False
            self._runs[run.row] = None
            self._free.append(run.row)
            run.row = None

    # Pages that move

    def park(self, account: Account) -> None:
        """The pages of an instance may be moved from now on: its runs have no steps."""
        if account.parked:
            return
        account.parked = True
        for run in _runs_of(account):
            if run.row is not None:
                run.parked = True
                self._active[run.row] = False
                run.pages.show(self._used[run.row, : self._facts[PAGES, run.row]])

    def resume(self, account: Account) -> None:
        """The pages of an instance are back: its runs go on."""
        if not account.parked:
            return
        account.parked = False
        for run in _runs_of(account):
            if run.row is None:
                continue
            row, run.parked = run.row, False
            try:
                run.pages.find_again()
            except ApiError as error:
                run.end(error)
                continue
            self._place(run, row, self._used[row, : self._facts[PAGES, row]].copy())
            self._active[row] = True

    # Steps

    @property
    def waits(self) -> bool:
        """Whether a run has a step to do."""
        return bool((self._active & (self._facts[SENT] < self._facts[LIMIT])).any())

    def step(self, most: int) -> Steps | None:
        """The next step of all runs that have one to do, at most so many of them."""
        rows = np.flatnonzero(self._active & (self._facts[SENT] < self._facts[LIMIT]))
        if not rows.size or most <= 0:
            return None
        current, pages = self._facts[CURRENT : PAGES + 1, rows]
        lacking = rows[current == pages]
        if lacking.size:
            self._take_pages(lacking)
            # Some may be parked now, or gone: pages are had from instances that are ended for it.
            rows = rows[self._active[rows]]
            rows = rows[self._facts[CURRENT, rows] < self._facts[PAGES, rows]]
        rows = self._cut(rows, most)
        return self._form(rows) if rows.size else None

    def _take_pages(self, rows: Rows) -> None:
        for row in rows.tolist():
            run = self._runs[row]
            if run is None or not self._active[row]:
                continue
            try:
                if run.pages.take(run.page_came):
                    self._place(run, row, self._used[row, : self._facts[PAGES, row]])
            except ApiError as error:
                run.end(error)

    def _cut(self, rows: Rows, most: int) -> Rows:
        """Those that fit into one batch: higher priority first, then those that waited longest."""
        if rows.size <= most and self._facts[CURRENT, rows].sum() + rows.size <= MAX_CONTEXT_PAGES:
            return rows
        priorities = [run.queue.rank[0] for row in rows.tolist() if (run := self._runs[row])]
        order = np.lexsort((self._facts[LAST, rows], np.array(priorities)))
        rows = rows[order][:most]
        pages = np.cumsum(self._facts[CURRENT, rows] + 1)
        return np.sort(rows[: max(1, int(np.searchsorted(pages, MAX_CONTEXT_PAGES, "right")))])

    def _form(self, rows: Rows) -> Steps:
        """The step of some rows; the next one is after it."""
        facts = self._facts[:, rows]
        runs = [run for row in rows.tolist() if (run := self._runs[row])]
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
        return Steps(runs, embed, forward, sample)

    def _forward(self, rows: Rows, facts: Int32) -> Forward:
        """The forward of rows with facts `[COLUMNS, n]`: one input each, into its own embed."""
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
