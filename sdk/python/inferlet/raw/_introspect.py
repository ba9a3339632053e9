"""Interface `introspect`: attention mass."""

from __future__ import annotations

from typing import Literal, TypeAlias

from inferlet._bindings import Err
from inferlet._bindings import introspect as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, as_u32, as_u32s

Detail: TypeAlias = Literal["total", "layers", "heads"]


def forward_with_attention(
    queue: int,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
    observed: int,
    detail: Detail,
    adapter: str = "",
) -> int:
    """As `forward`, and a future of what the last `observed` inputs attend to; consume it with
    `take_attention`. `detail` is how much is told: "total", averages over layers and heads; "layers", a
    row a layer; "heads", a row a head, layer by layer. An empty text as `adapter` is none.
    Errors: as `forward_with_adapter`, and `invalid-argument` (not 1 to as many as inputs are observed),
    `limit-exceeded` (an answer of over 524288 numbers, inputs times columns over 2^28), `unsupported`.
    """
    try:
        answer: int = interface.forward_with_attention(
            as_u32(queue),
            as_u32s(input_pages),
            as_u32s(input_embeds),
            as_u32s(output_pages),
            as_u32s(output_embeds),
            as_u32s(mask),
            as_u32(observed),
            interface.Detail[detail.upper()],
            as_text(adapter),
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer


def take_attention(future: int) -> tuple[int, list[float]]:
    """Consumes a ready future of attention: how many rows, and their numbers, one row after the other.
    Columns are those of a mask: the filled slots of the input pages in order, then the inputs. A number
    is the sum over the observed inputs of their attention probabilities; what is hidden has 0.
    Errors: `invalid-handle`, `not-ready`, or the error of what it stood for.
    """
    try:
        answer: tuple[int, list[float]] = interface.take_attention(as_u32(future))
    except Err as error:
        raise PieError(error.value) from None
    return answer
