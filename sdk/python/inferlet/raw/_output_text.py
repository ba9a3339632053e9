"""Interface `output-text`: distributions of next tokens."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import output_text as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_u32


def get_next_dist(queue: int, embed: int, k: int) -> int:
    """A future of the `k` most likely next tokens after an output embed; consume it with `take_dist`.
    `k` is at least 1; more than the vocabulary means the whole vocabulary; 256 is usual.
    Errors: `invalid-handle`, `invalid-argument`, `limit-exceeded`.
    """
    try:
        answer: int = interface.get_next_dist(as_u32(queue), as_u32(embed), as_u32(k))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_dist(future: int) -> tuple[list[int], list[float]]:
    """Consumes a ready future of a distribution: token ids, and their probabilities (of the softmax
    over the whole vocabulary, temperature 1), most likely first.
    Errors: `invalid-handle`, `not-ready`, or the error of what it stood for.
    """
    try:
        answer: tuple[list[int], list[float]] = interface.take_dist(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer
