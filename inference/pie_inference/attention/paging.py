"""Tables of where the keys of sequences lie, as kernels for paged KV caches read them.

Most sequences have full pages and then one that fills up: an entry of their table is a page. Where
a page that is not the last has empty slots, slots are masked, or inputs are not stored, an entry is
a slot: the same kernels then take the pool for one with pages of one slot.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_inference.attention.sequences import Sequences, lengths, ranges, short_offsets
from pie_inference.device import Bool, Int32, Int64
from pie_inference.layers.step import StepRows
from pie_inference.memory.kv_cache import KvCache

MOST_INPUTS = 17  # of a sequence that attend one by one: a token and the guesses behind it


@dataclass(frozen=True, slots=True)
class PageTable:
    """Keys of `n` sequences, in order."""

    page_size: int  # slots that an entry stands for: those of a page, or 1
    starts: Int32  # [n + 1] offsets into entries
    entries: Int32
    last: Int32  # [n] filled slots of each sequence's last entry

    @property
    def keys(self) -> Int64:
        """How many keys each sequence has, `[n]`."""
        return (lengths(self.starts).astype(np.int64) - 1) * self.page_size + self.last

    def select(self, members: NDArray[np.integer[Any]]) -> PageTable:
        """Of some of the sequences."""
        if members.size == self.last.size:
            return self
        counts = lengths(self.starts)[members]
        entries = ranges(self.starts[members], counts)
        return PageTable(
            self.page_size, short_offsets(counts), self.entries[entries], self.last[members]
        )


def page_table(s: Sequences, page_size: int) -> tuple[PageTable, Bool]:
    """Tables by page, and of which sequences they are right: `[n]`.

    Takes time with the number of pages and inputs, not with that of keys.
    """
    count, every = s.input_starts.size - 1, np.arange(s.input_starts.size - 1)
    pages, used, own = s.pages.pages, s.pages.used, lengths(s.pages.starts)
    owners = every.repeat(own)
    if not used.all():
        held = used > 0
        pages, used, owners = pages[held], used[held], owners[held]
        own = np.bincount(owners, minlength=count)
    filled = np.bincount(owners, used, count).astype(np.int64)
    last_of = np.ones(pages.size, np.bool_)
    last_of[:-1] = owners[1:] != owners[:-1]
    aligned = ~s.pages.masked
    aligned[owners[~last_of & (used != page_size)]] = False

    slots, inputs = s.input_slots, lengths(s.input_starts)
    of = every.repeat(inputs)
    places = filled[of] + np.arange(slots.size) - s.input_starts[of]
    before = np.full(slots.size, -2, np.int64)  # the slot of the key before
    before[1:] = slots[:-1]
    ends = np.full(count, -2, np.int64)
    ends[owners[last_of]] = pages[last_of] * page_size + used[last_of] - 1
    some = inputs > 0
    before[s.input_starts[:-1][some]] = ends[some]
    opening = places % page_size == 0
    right = (slots % page_size == 0) & opening | (slots == before + 1) & ~opening
    aligned[of[~right]] = False

    added = np.bincount(of[opening], minlength=count)  # pages that inputs begin
    starts = short_offsets(own + added)
    entries = np.empty(int(starts[-1]), np.int32)
    entries[ranges(starts[:-1], own)] = pages
    entries[ranges(starts[:-1] + own, added)] = slots[opening] // page_size
    last = (filled + inputs - 1) % page_size + 1
    return PageTable(page_size, starts, entries, last.astype(np.int32)), aligned


def slot_table(s: Sequences, members: Int64) -> PageTable:
    """Tables by slot, of some sequences: right for all, and as large as they have keys."""
    context, inputs = lengths(s.context_starts)[members], lengths(s.input_starts)[members]
    starts = short_offsets(context + inputs)
    entries = np.empty(int(starts[-1]), np.int32)
    own = ranges(s.context_starts[members], context)
    entries[ranges(starts[:-1], context)] = s.context_slots[own]
    entries[ranges(starts[:-1] + context, inputs)] = s.input_slots[
        ranges(s.input_starts[members], inputs)
    ]
    return PageTable(1, starts, entries, np.ones(members.size, np.int32))


def filtered(table: PageTable, seen: Bool) -> tuple[PageTable, Int64]:
    """A table by slot without the keys that are not seen, by entry, and the sequences that see
    nothing.

    Those keep their last key, for kernels want one.
    """
    seen = seen.copy()
    owners = np.repeat(np.arange(table.last.size), lengths(table.starts))
    blank = np.flatnonzero(np.bincount(owners, seen, table.last.size) == 0)
    seen[table.starts[1:][blank] - 1] = True
    counts = np.bincount(owners[seen], minlength=table.last.size)
    return PageTable(1, short_offsets(counts), table.entries[seen], table.last), blank


def step_rows(s: Sequences, cache: KvCache, fixed: bool, **more: Any) -> StepRows:
    """The slots that each input sees: those before it in its sequence, or those of its rule. If
    `fixed`, inputs attend one by one, whatever else is in the batch.
    """
    table, by_page = page_table(s, cache.page_size)
    if not by_page.all():
        table = slot_table(s, np.arange(by_page.size))
    inputs = lengths(s.input_starts)
    behind = s.input_starts[1:].repeat(inputs) - np.arange(s.input_slots.size) - 1
    rules = {int(s.input_starts[i]): s.seen(i) for i in s.visible}
    for first, rule in rules.items():
        behind[first : first + len(rule)] = 0
    return StepRows(
        slots=s.input_slots,
        starts=table.starts[:-1].repeat(inputs).astype(np.int64),
        keys=table.keys.repeat(inputs) - behind,
        entries=table.entries,
        page_size=table.page_size,
        positions=cache.positions,
        most_alone=sys.maxsize if fixed else MOST_INPUTS,
        rules=rules,
        may_share=not fixed,
        **more,
    )
