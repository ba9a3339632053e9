"""Cuts of a long forward, at places where its parts give what the whole gives.

What a part computes lies in pages for the next one. So a forward that keeps nothing can't be cut,
nor can one between two inputs of which the earlier one sees the later one. What can't be cut may
have so many inputs at most, because every other step waits for it.
"""

from __future__ import annotations

from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pie_control.errors import exceeded
from pie_control.resources.pools import PagePool
from pie_py.wire.plan import Int32

# Where the keys and values of a forward's inputs go: [q] pages that receive some, [q] filled slots
# of each afterwards, [n] KV slots, one an input.
Room: TypeAlias = tuple[list[int], list[int], list[int]]


def by_positions(places: list[int]) -> Int32:
    """Where no input before the cut has a higher position than one behind it."""
    positions = np.array(places, np.int32)
    lowest = np.minimum.accumulate(positions[::-1])[::-1]
    return _after(np.maximum.accumulate(positions)[:-1] <= lowest[1:])


def by_mask(ends: list[int], context: int) -> Int32:
    """Where no input before the cut sees one behind it; `ends` has for each the column behind the
    last one that it sees, and `context` columns come before the inputs.
    """
    seen = np.maximum.accumulate(np.array(ends, np.int32)[:-1]) - context
    return _after(seen <= np.arange(1, len(ends)))


def _after(may: NDArray[np.bool_]) -> Int32:
    return (np.flatnonzero(may) + 1).astype(np.int32)


def without_last(cuts: Int32, inputs: list[int], outputs: list[int], observed: int) -> Int32:
    """The cuts before the inputs whose results are wanted from the last part: hidden states
    (`outputs`), and the attention of the last `observed` ones.

    The parts may have outputs of their own, but for those that a later part reads: inputs other
    than the one that an output is of.
    """
    count, last, read = len(inputs), observed, set(inputs)
    pairs = zip(inputs[count - len(outputs) :], outputs, strict=True)
    own = len(read) == count and all(to == of or to not in read for of, to in pairs)
    if not own and not read.isdisjoint(outputs):
        last = max(last, len(outputs))
    return cuts[cuts <= count - last]


def goes_on(pool: PagePool, pages: Int32, room: Room | None, *, in_order: bool) -> bool:
    """True if the later inputs may find the earlier ones in the pages, which are as they are before
    the forward, instead. If `in_order`, the columns must stay as they are, too: first what the
    pages hold, then the inputs.
    """
    if room is None or any(pool.used.item(page) for page in islice(room[0], 1, None)):
        return False
    first = room[0][0]
    if not pool.used.item(first):
        return True
    held = pages[pool.used[pages] > 0] if in_order else pages
    once = np.count_nonzero(held == first) == 1
    return once and (not in_order or held[-1] == first)


def check_pieces(cuts: Int32, count: int, most: int, *, is_kept: bool) -> None:
    """Refuses a forward with more inputs that must run at once than there may be.

    Raises:
        ApiError: `limit-exceeded`.
    """
    piece = int(np.diff(cuts, prepend=0, append=count).max())
    if piece <= most:
        return
    mend = "run it in parts, or let no input see later ones (by its mask or position)"
    if not is_kept:
        mend = "give it output pages, in which later inputs find the earlier ones"
    raise exceeded(
        f"{piece} inputs of this forward can only run at once, {most} at most may: {mend}"
    )
