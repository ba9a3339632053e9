"""Lists of addresses as the spans that the contract wants, and who shares which page."""

from __future__ import annotations

from collections.abc import Sequence


def spans(addresses: Sequence[int]) -> list[int]:
    """Addresses in order as `[start, count, start, count, ...]`."""
    if not addresses:
        return []
    if len(addresses) == 1:
        return [addresses[0], 1]
    out: list[int] = []
    extend(out, addresses)
    return out


def extend(spans: list[int], more: Sequence[int]) -> None:
    """Appends addresses to spans."""
    for address in more:
        if spans and spans[-2] + spans[-1] == address:
            spans[-1] += 1
        else:
            spans += (address, 1)


def addresses(spans: Sequence[int]) -> list[int]:
    """The addresses that spans stand for, in order."""
    return [
        address
        for start, count in zip(spans[::2], spans[1::2], strict=True)
        for address in range(start, start + count)
    ]


def share(counts: dict[int, int], pages: Sequence[int]) -> None:
    """Notes one more holder of each page. A page that is not in `counts` has one."""
    for page in pages:
        counts[page] = counts.get(page, 1) + 1


def drop(counts: dict[int, int], pages: Sequence[int]) -> list[int]:
    """Notes one holder fewer of each page, and returns the pages that nobody holds any more."""
    free = []
    for page in pages:
        count = counts.get(page, 1)
        if count == 1:
            free.append(page)
        elif count == 2:
            del counts[page]
        else:
            counts[page] = count - 1
    return free
