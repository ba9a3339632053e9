"""Notices forks that are generated one after the other, where they could run at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from inferlet import raw

if TYPE_CHECKING:
    from inferlet._sequence import Sequence

ENOUGH = 3  # generations in a row, of forks that were there before the first of them
HINT = (
    f"{ENOUGH} forks of a context were generated one after the other. Unless one needs another's"
    " text, run them at once, which takes a fraction of the time:"
    " `await gather(*(generator.collect_text() for generator in generators))`"
)


class _Row:
    """Generations of one context's forks, each begun after the end of the one before."""

    forks: set[int] = set()  # noqa: RUF012 - there is one row
    parent = 0
    newest = 0  # sequence, when the first of them began
    running = 0  # generations under way
    hinted = False


@contextmanager
def generating(sequence: Sequence) -> Iterator[None]:
    """A generation that is read as a whole, within the block. The log gets the hint once."""
    _begin(sequence.number, sequence.parent, sequence.made)
    _Row.running += 1
    try:
        yield
    finally:
        _Row.running -= 1


def _begin(fork: int, parent: int, newest: int) -> None:
    row = _Row
    if row.running or row.hinted or not parent:
        row.forks, row.parent = set(), 0
    elif parent == row.parent and fork <= row.newest and fork not in row.forks:
        row.forks.add(fork)
    else:
        row.forks, row.parent, row.newest = {fork}, parent, newest
    if len(row.forks) == ENOUGH:
        row.hinted = True
        raw.log("warning", HINT)
