"""Interface `input-text`: embeds of tokens."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import input_text as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_u32, as_u32s


def embed_txt(queue: int, tokens: list[int], positions: list[int], embeds: list[int]) -> None:
    """Embeds tokens at positions into embeds; the three have the same length. `positions` are spans,
    like handles: `[0, 9]` is the positions 0 to 8.
    Errors: `invalid-handle`, `invalid-argument` (a token outside the vocabulary, a position outside
    the model's context, lengths that disagree), `limit-exceeded`.
    """
    try:
        interface.embed_txt(as_u32(queue), as_u32s(tokens), as_u32s(positions), as_u32s(embeds))
    except Err as error:
        raise PieError(error.value) from None
