"""Changes of what lies in the pages of a sequence: tokens dropped, hidden, or kept out of a tree.

All but `keep` leave the positions of the other tokens as they are, and all end the sequence's part
in the prefix cache: it is no plain text any more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from collections.abc import Sequence as List

from inferlet import raw
from inferlet._pages import spans
from inferlet._sequence import Sequence


def drop(sequence: Sequence, first: int, last: int, *, close: bool) -> None:
    """Gives the pages of the tokens from `first` up to `last` back.

    With `close` the tokens behind them get new positions, as if there had been no gap. Raises
    ValueError: these are no whole pages, or with `close` begin or end within an image that takes
    fewer positions than tokens.
    """
    size = sequence.pages.size
    if first % size or last % size or not 0 <= first <= last <= len(sequence.tokens):
        raise ValueError(
            f"tokens {first} to {last} are no whole pages of {size} tokens, of"
            f" {len(sequence.tokens)} in the pages"
        )
    distance = sequence.position(last) - sequence.position(first) if close else 0
    sequence.confirm()
    sequence.prefix_cache = False
    sequence.pages.remove(first // size, last // size)
    del sequence.tokens[first:last]
    sequence.confirmed = len(sequence.tokens)
    count = last - first
    sequence.shift += count - distance
    _move_images(sequence, lambda place: min(place, max(first, place - count)))
    if close:
        _shift(sequence, first, -distance)
    kept = (place for place in sequence.hidden if not first <= place < last)
    sequence.hidden = {place - count if place >= last else place for place in kept}


def _shift(sequence: Sequence, first: int, distance: int) -> None:
    """Turns the tokens in the pages from `first` on, where a page begins, to other positions."""
    pages, size = sequence.pages, sequence.pages.size
    length = len(sequence.tokens)
    turned: list[int] = []
    for index in range(first // size, -(-length // size)):
        turned.append(pages.make_writable(index, min(size, length - index * size)))
    if turned:
        raw.shift_kvpage(sequence.queue, spans(turned), distance)


def _move_images(sequence: Sequence, moved: Callable[[int], int]) -> None:
    """Notes where images are now whose tokens have moved, or are gone."""
    found = ((moved(first), moved(end), positions) for first, end, positions in sequence.images)
    sequence.images = [image for image in found if image[0] < image[1]]


def evict(sequence: Sequence, places: Collection[int]) -> None:
    """Gives up the tokens at some places; the others move together and keep their positions. Raises
    ValueError: a place is not in the pages.
    """
    length, gone = len(sequence.tokens), set(places)
    if not gone <= set(range(length)):
        raise ValueError(f"places {min(gone)} to {max(gone)} are not all in the {length} tokens")
    kept = [place for place in range(length) if place not in gone]
    hidden = {at for at, place in enumerate(kept) if place in sequence.hidden}
    sequence.prefix_cache = False
    pending, sequence.pending = sequence.pending, []
    images, sequence.images = sequence.images, []
    keep(sequence, 0, kept)
    sequence.pending, sequence.images = pending, images
    _move_images(sequence, lambda place: bisect_left(kept, place))
    sequence.hidden = hidden
    sequence.shift += len(gone)


def hide(sequence: Sequence, first: int, last: int, *, hidden: bool) -> None:
    """Lets no later token attend to those from `first` up to `last`, or lets them again. Raises
    ValueError: these are not in the pages; PieError: `out-of-resources`, for the copy of a page
    that others read.
    """
    length, size = len(sequence.tokens), sequence.pages.size
    if not 0 <= first <= last <= length:
        raise ValueError(f"tokens {first} to {last} are not among the {length} in the pages")
    sequence.confirm()
    sequence.prefix_cache = False
    change = sequence.hidden.update if hidden else sequence.hidden.difference_update
    change(range(first, last))
    pages: list[int] = []
    masks: list[int] = []
    for index in range(first // size, -(-last // size)):
        used = min(size, length - index * size)
        pages += (sequence.pages.make_writable(index, used), 1)
        bits = (1 << slot for slot in range(used) if index * size + slot in sequence.hidden)
        masks.append(sum(bits))
    raw.mask_kvpage(sequence.queue, pages, masks)


def keep(sequence: Sequence, first: int, places: List[int]) -> None:
    """Keeps, of the tokens from `first` on, those at some places; slots move, nothing runs again.

    Args:
        first: how many tokens stay as they are.
        places: of the others, rising; the path of a tree.

    Raises:
        ValueError: the places do not rise, or are not in the pages, or an image that takes fewer
            positions than tokens is among the tokens from `first` on.
    """
    length, pages = len(sequence.tokens), sequence.pages
    rising = all(a < b for a, b in zip([first - 1, *places], [*places, length], strict=True))
    if not rising:
        raise ValueError(f"places {list(places)} have to rise, from {first} to {length - 1}")
    if sequence.images and sequence.images[-1][1] > first:
        raise ValueError(f"an image is among the tokens from {first} on: `evict` gives tokens up")
    sequence.confirm()
    for target, source in enumerate(places, first):
        if source != target:
            index = target // pages.size
            page = pages.make_writable(index, min(pages.size, length - index * pages.size))
            origin = pages.addresses[source // pages.size]
            raw.copy_kvpage(
                sequence.queue, origin, source % pages.size, page, target % pages.size, 1
            )
            sequence.tokens[target] = sequence.tokens[source]
    if first + len(places) < length:
        sequence.set_length(first + len(places))  # behind the copies, in the same queue
