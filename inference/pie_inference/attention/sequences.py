"""What every input of a forward attends to, by the contract's rules, independent of a backend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pie_inference.errors import BadBatch
from pie_inference.kv_cache import KvCache
from pie_py.wire.plan import Forward

Int64 = NDArray[np.int64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Sequences:
    """The `n` ragged sequences of a forward: keys of sequence `i` are its context, then its inputs.

    A sequence that is not in `visible` attends to its whole context and causally, in list order,
    among its inputs. What a rule in `visible` has no columns for, at the front, is seen.
    """

    input_starts: Int64  # [n + 1] offsets into inputs
    positions: NDArray[np.int32]  # [t] of inputs
    input_slots: Int64  # [t] slot of each input's key and value; a scratch slot if it is not kept
    context_starts: Int64  # [n + 1] offsets into context_slots
    context_slots: Int64  # [c] live slots of the input pages
    visible: dict[int, Bool]  # sequence -> [inputs, context + inputs or only the last of them]


def describe(batch: Forward, positions: NDArray[np.int32], cache: KvCache) -> Sequences:
    """Applies the contract's rules to a checked batch.

    Args:
        batch: indices are within the pools.
        positions: of the inputs, `[t]`.
        cache: whose masks hide slots.

    Raises:
        BadBatch: for mask rows that do not fit, or more inputs than scratch slots.
    """
    input_starts = batch.input_starts.astype(np.int64)
    slots, starts = _filled_slots(batch, cache.page_size)
    visible = _explicit(batch, input_starts, starts)
    for i in _out_of_order(positions, input_starts):
        if i not in visible:
            visible[i] = _by_position(positions[input_starts[i] : input_starts[i + 1]])
    if batch.has_masked.any():
        slots, starts, visible = _without_masked(batch, cache, slots, starts, visible)
    return Sequences(input_starts, positions, _input_slots(batch, cache), starts, slots, visible)


def _filled_slots(batch: Forward, page_size: int) -> tuple[Int64, Int64]:
    """Filled slots of the input pages, and where each sequence's begin."""
    used = batch.page_used.astype(np.int64)
    ends = np.cumsum(used)
    total = int(ends[-1]) if ends.size else 0
    firsts = batch.pages * np.int64(page_size) - (ends - used)
    slots = np.repeat(firsts, used) + np.arange(total)
    starts = np.concatenate([np.zeros(1, np.int64), ends])[batch.page_starts]
    return slots, starts


def live_columns(batch: Forward, cache: KvCache, i: int) -> tuple[Int64, int]:
    """Which of the filled slots of a sequence's input pages are in `context_slots`, and how many all are.

    Ask before the forward has run: it makes the slots that it writes live.
    """
    pages = slice(*batch.page_starts[i : i + 2].tolist())
    used = batch.page_used[pages]
    total = int(used.sum())
    if not batch.has_masked[i]:
        return np.arange(total), total
    filled = np.arange(cache.page_size) < used[:, None]
    slots = batch.pages[pages].astype(np.int64)[:, None] * cache.page_size
    slots = (slots + np.arange(cache.page_size))[filled]
    return np.flatnonzero(~cache.masked[slots]), total


def _input_slots(batch: Forward, cache: KvCache) -> Int64:
    """Slots of the inputs' keys and values; those that are not kept go to scratch slots."""
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


def _out_of_order(positions: NDArray[np.int32], input_starts: Int64) -> list[int]:
    """Sequences in which a position is lower than the one before it."""
    falls = np.flatnonzero(positions[1:] < positions[:-1]) + 1
    if not falls.size:
        return []
    owners = np.searchsorted(input_starts, falls, side="right") - 1
    return [int(i) for i in np.unique(owners[falls != input_starts[owners]])]


def _by_position(positions: NDArray[np.int32]) -> Bool:
    """`[inputs, inputs]`: those with a lower position, or an equal one and not after it in the list."""
    order = np.arange(positions.size)
    query, key = positions[:, None], positions[None, :]
    lower: Bool = (key < query) | ((key == query) & (order[None, :] <= order[:, None]))
    return lower


def _explicit(batch: Forward, input_starts: Int64, context_starts: Int64) -> dict[int, Bool]:
    """Explicit masks, by sequence."""
    visible = {}
    for i in np.flatnonzero(np.diff(batch.mask_starts)).tolist():
        inputs = int(input_starts[i + 1] - input_starts[i])
        context = int(context_starts[i + 1] - context_starts[i])
        runs = batch.mask[batch.mask_starts[i] : batch.mask_starts[i + 1]]
        visible[i] = expand_runs(runs, inputs, context + inputs)
    return visible


def expand_runs(runs: NDArray[np.int32], rows: int, columns: int) -> Bool:
    """Run-length rows `[runs, length, length, ...]` (hidden first) as `[rows, columns]`.

    Raises:
        BadBatch: if they are not that many rows of that many columns.
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


def _without_masked(
    batch: Forward, cache: KvCache, slots: Int64, starts: Int64, visible: dict[int, Bool]
) -> tuple[Int64, Int64, dict[int, Bool]]:
    """Drops the masked slots of sequences that have any."""
    looked_at = np.repeat(batch.has_masked != 0, np.diff(starts))
    live = ~(cache.masked[slots] & looked_at)
    kept = {}
    for i, rows in visible.items():
        inputs = np.ones(int(batch.input_starts[i + 1] - batch.input_starts[i]), np.bool_)
        shown = np.concatenate([live[starts[i] : starts[i + 1]], inputs])
        kept[i] = rows[:, shown[shown.size - rows.shape[1] :]]
    counts = np.concatenate([np.zeros(1, np.int64), np.cumsum(live)])
    return slots[live], counts[starts], kept
