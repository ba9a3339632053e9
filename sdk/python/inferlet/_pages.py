"""Lists of addresses as the spans that the contract wants, and who shares which page."""

from __future__ import annotations

from collections.abc import Sequence


def spans(addresses: Sequence[int]) -> list[int]:
    """Addresses in order as `[start, count, start, count, ...]`."""
    if not addresses:
        return []
    start = previous = addresses[0]
    if addresses[-1] - start == len(addresses) - 1 and len(addresses) < 3:
        return [start, len(addresses)]
    out: list[int] = []
    for address in addresses[1:]:
        if address != previous + 1:
            out += (start, previous + 1 - start)
            start = address
        previous = address
    out += (start, previous + 1 - start)
    return out


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
