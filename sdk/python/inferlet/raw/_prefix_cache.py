"""Interface `prefix-cache`: beginnings of texts that have been computed before."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import prefix_cache as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, as_u32, as_u32s


def match_prefix(queue: int, adapter: str, tokens: list[int]) -> tuple[list[int], int]:
    """Maps the pages that hold the first of `tokens`, as many full ones as there are, and returns
    spans of them, and 0. They are immutable; `adapter` is that of the forwards that filled them, an
    empty text is none. If commands of somebody are computing more of these tokens just now, there are
    no spans, but a future of when they have or have failed: `take` it, and call again.
    Errors: `invalid-handle`, `unsupported`, `not-found` (no such adapter), `limit-exceeded`.
    """
    try:
        answer: tuple[list[int], int] = interface.match_prefix(
            as_u32(queue), as_text(adapter), as_u32s(tokens)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def insert_prefix(queue: int, pages: list[int]) -> int:
    """Offers the pages of a text, the first ones of it in order. Those that are full, or will be once
    what is queued has run, become immutable and are found from then on; returns how many, 0 if the
    server does not know what the pages hold. They stay findable while nobody holds them, until their
    memory is needed.
    Errors: `invalid-handle`, `swapped-out`.
    """
    try:
        answer: int = interface.insert_prefix(as_u32(queue), as_u32s(pages))
    except Err as error:
        raise PieError(error.value) from None
    return answer
