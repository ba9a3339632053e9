"""The keys that every input of a forward attends to, by the contract's rules, for any backend."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pie_inference.device import Bool, Int32, Int64
from pie_inference.errors import BadBatch
from pie_inference.memory.kv_cache import KvCache
from pie_py.wire.plan import Forward

_Integer = TypeVar("_Integer", bound=np.integer[Any])


@dataclass(frozen=True, slots=True)
class Pages:
    """Input pages of the sequences of a forward, in the order given."""

    starts: Int64  # [n + 1] offsets into the two below, of each sequence
    pages: Int64  # [p]
    used: Int64  # [p] filled slots of each
    masked: Bool  # [n] whether slots of a sequence's pages are left out


@dataclass(frozen=True)
class Sequences:
    """The `n` ragged sequences of a forward: keys of sequence `i` are its context, then its inputs.

    A sequence that is not in `visible` attends to its whole context and causally, in list order,
    among its inputs. What a rule in `visible` has no columns for, at the front, is seen.
    """

    input_starts: Int64  # [n + 1] offsets into inputs
    positions: Int32  # [t] of inputs
    input_slots: Int64  # [t] slot of each input's key and value; a scratch slot if it has none
    pages: Pages
    context_starts: Int64  # [n + 1] offsets into context_slots
    visible: dict[int, Bool]  # sequence -> [inputs, context + inputs or only the last of them]
    live: (
        Bool | None
    )  # which filled slots are live, of the pages of those `masked`; None if all are
    page_size: int

    @cached_property
    def context_slots(self) -> Int64:
        """`[c]` live slots of the input pages: slow; backends that read `pages` need none."""
        pages = self.pages
        slots = _filled_slots(pages.pages, pages.used, self.page_size)
        if self.live is None:
            return slots
        kept = np.ones(slots.size, np.bool_)
        filled = lengths(offsets(pages.used)[pages.starts])
        kept[np.repeat(pages.masked, filled)] = self.live
        return slots[kept]

    def seen(self, sequence: int) -> Bool:
        """`[inputs, context + inputs]`: what the inputs of a sequence see, windows aside."""
        starts, contexts = self.input_starts, self.context_starts
        inputs = int(starts[sequence + 1] - starts[sequence])
        context = int(contexts[sequence + 1] - contexts[sequence])
        rule = self.visible.get(sequence)
        if rule is None:
            return np.tri(inputs, context + inputs, context, dtype=np.bool_)
        whole = np.ones((inputs, context + inputs), np.bool_)
        whole[:, context + inputs - rule.shape[1] :] = rule
        return whole

    def key_slots(self, sequence: int) -> Int64:
        """Slots of a sequence's keys: those of its context, then those of its inputs."""
        context = slice(*self.context_starts[sequence : sequence + 2].tolist())
        inputs = slice(*self.input_starts[sequence : sequence + 2].tolist())
        return np.concatenate([self.context_slots[context], self.input_slots[inputs]])

    def live_columns(self, sequence: int, cache: KvCache) -> tuple[Int64, int]:
        """Which of the filled slots of a sequence's input pages are in `context_slots`, and how
        many there are of them all.

        Ask before the forward has run: it makes the slots that it writes live.
        """
        some = slice(*self.pages.starts[sequence : sequence + 2].tolist())
        slots = _filled_slots(self.pages.pages[some], self.pages.used[some], self.page_size)
        if not self.pages.masked[sequence]:
            return np.arange(slots.size), slots.size
        return np.flatnonzero(~cache.masked[slots]), slots.size


def describe(batch: Forward, positions: Int32, cache: KvCache) -> Sequences:
    """Applies the contract's rules to a checked batch, whose inputs have positions `[t]`. Raises
    `BadBatch` for mask rows that do not fit, or more inputs than scratch slots.
    """
    input_starts = batch.input_starts.astype(np.int64)
    page_starts = batch.page_starts.astype(np.int64)
    used = batch.page_used.astype(np.int64)
    filled = offsets(used)[page_starts]
    visible = _explicit(batch, input_starts, filled)
    for i in _out_of_order(positions, input_starts):
        if i not in visible:
            visible[i] = _by_position(positions[input_starts[i] : input_starts[i + 1]])
    masked = batch.has_masked != 0
    pages = Pages(page_starts, batch.pages.astype(np.int64), used, masked)
    starts, live = filled, None
    if masked.any():
        live = _live(pages, cache)
        counts = lengths(filled)
        starts = offsets(live)
        ends = np.cumsum(np.where(masked, counts, 0))
        kept = starts[ends] - starts[ends - np.where(masked, counts, 0)]
        starts = offsets(np.where(masked, kept, counts))
        for i in visible:
            if masked[i]:
                inputs = np.ones(int(input_starts[i + 1] - input_starts[i]), np.bool_)
                shown = np.concatenate([live[ends[i] - counts[i] : ends[i]], inputs])
                visible[i] = visible[i][:, shown[shown.size - visible[i].shape[1] :]]
    return Sequences(
        input_starts,
        positions,
        _input_slots(batch, cache),
        pages,
        starts,
        visible,
        live,
        cache.page_size,
    )


class PartOfImage(Exception):
    """A forward has some inputs of an image, and others are missing that these would see."""


def see_whole(sequences: Sequences, rows: Int64, places: Int64) -> None:
    """Lets inputs of an image see each other, where no mask says what is seen: those at `rows`
    `[k]`, with their places in an image and its inputs `[k, 3]`. Raises `PartOfImage` if one is
    not there whole.
    """
    starts = sequences.input_starts
    owners = np.searchsorted(starts, rows, side="right") - 1
    for i in np.unique(owners).tolist():
        if i in sequences.visible:
            continue
        count = int(starts[i + 1] - starts[i])
        first = np.full(count, -1)
        own = rows[owners == i] - starts[i]
        at, size = places[owners == i, 0], places[owners == i, 1]
        first[own] = own - at
        if (own < at).any() or (own - at + size > count).any():
            raise PartOfImage
        together = (first[:, None] == first) & (first[:, None] >= 0)
        sequences.visible[i] = np.tri(count, dtype=np.bool_) | together


# NumPy's methods: `np.diff`, `np.repeat`, `np.flatnonzero` call several functions of Python first,
# whose code the weights have pushed out of the caches since the step before.
def offsets(counts: NDArray[np.integer[Any]] | Bool) -> Int64:
    """Where runs of such lengths start, and where the last one ends."""
    found = np.zeros(counts.size + 1, np.int64)
    found[1:] = counts.cumsum()
    return found


def short_offsets(counts: NDArray[np.integer[Any]]) -> Int32:
    """The same, as kernels for pages want them."""
    found = np.zeros(counts.size + 1, np.int32)
    found[1:] = counts.cumsum()
    return found


def lengths(starts: NDArray[_Integer]) -> NDArray[_Integer]:
    """The inverse of `offsets`."""
    return starts[1:] - starts[:-1]


def output_rows(batch: Forward) -> Int64:
    """Inputs whose hidden states are wanted: the last ones of each sequence."""
    counts = lengths(batch.output_starts)
    return ranges(batch.input_starts[1:] - counts, counts)


def ranges(starts: NDArray[np.integer[Any]], counts: NDArray[np.integer[Any]]) -> Int64:
    """`start .. start + count - 1` of each, one after the other."""
    ends = counts.cumsum()
    shift: Int64 = starts - (ends - counts)
    return shift.repeat(counts) + np.arange(ends[-1] if ends.size else 0)


def _filled_slots(pages: Int64, used: Int64, page_size: int) -> Int64:
    """Filled slots of pages, in order."""
    ends = np.cumsum(used)
    firsts = pages * page_size - (ends - used)
    return np.repeat(firsts, used) + np.arange(int(ends[-1]) if ends.size else 0)


def _live(pages: Pages, cache: KvCache) -> Bool:
    """Which filled slots are live, of the sequences that have masked ones, one after the other."""
    looked_at = np.repeat(pages.masked, lengths(pages.starts))
    slots = _filled_slots(pages.pages[looked_at], pages.used[looked_at], cache.page_size)
    live: Bool = ~cache.masked[slots]
    return live


def _input_slots(batch: Forward, cache: KvCache) -> Int64:
    """Slots of the inputs' keys and values; those that have none go to scratch slots."""
    slots = batch.output_slots.astype(np.int64)
    kept = slots >= 0
    if not kept.all():
        dropped = np.flatnonzero(~kept)
        if dropped.size > cache.scratch:
            raise BadBatch(
                f"forward: {dropped.size} inputs without slot, {cache.scratch} is the limit"
            )
        slots[dropped] = cache.slots + np.arange(dropped.size)
    return slots


def _out_of_order(positions: Int32, input_starts: Int64) -> list[int]:
    """Sequences in which a position is lower than the one before it."""
    falls = (positions[1:] < positions[:-1]).nonzero()[0] + 1
    if not falls.size:
        return []
    owners = np.searchsorted(input_starts, falls, side="right") - 1
    return [int(i) for i in np.unique(owners[falls != input_starts[owners]])]


def _by_position(positions: Int32) -> Bool:
    """`[inputs, inputs]`: those with a lower position, or an equal one and not behind it."""
    order = np.arange(positions.size)
    query, key = positions[:, None], positions[None, :]
    lower: Bool = (key < query) | ((key == query) & (order[None, :] <= order[:, None]))
    return lower


def _explicit(batch: Forward, input_starts: Int64, context_starts: Int64) -> dict[int, Bool]:
    """Explicit masks, by sequence."""
    visible = {}
    for i in lengths(batch.mask_starts).nonzero()[0].tolist():
        inputs = int(input_starts[i + 1] - input_starts[i])
        context = int(context_starts[i + 1] - context_starts[i])
        runs = batch.mask[batch.mask_starts[i] : batch.mask_starts[i + 1]]
        visible[i] = expand_runs(runs, inputs, context + inputs)
    return visible


def expand_runs(runs: Int32, rows: int, columns: int) -> Bool:
    """Run-length rows `[runs, length, length, ...]` (hidden first) as `[rows, columns]`. Raises
    `BadBatch` if they are not that many rows of that many columns.
    """
    visible = np.zeros((rows, columns), np.bool_)
    at = 0
    for row in range(rows):
        count = int(runs[at]) if at < runs.size else -1
        lengths = runs[at + 1 : at + 1 + max(count, 0)]
        if count < 0 or lengths.size != count or (lengths < 0).any() or lengths.sum() != columns:
            raise BadBatch(f"forward: mask row {row} is not runs of {columns} columns in all")
        visible[row] = np.repeat(np.arange(count) % 2 == 1, lengths)
        at += 1 + count
    if at != runs.size:
        raise BadBatch(f"forward: the mask has more than the {rows} rows of its inputs")
    return visible
