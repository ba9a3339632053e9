"""Interface `adapter`: forward passes through LoRA adapters."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import adapter as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_text, as_u32, as_u32s


def available_adapters(model: str) -> list[str]:
    """Names of the adapters that are loaded for a model.
    Errors: `unknown-model`, `unsupported`.
    """
    try:
        answer: list[str] = interface.available_adapters(as_text(model))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def forward_with_adapter(
    queue: int,
    adapter: str,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
) -> None:
    """As `forward`, through an adapter. Keys and values in the pages are those of the adapter that
    computed them. An adapter stays loaded as long as an instance that has used it is alive.
    Errors: as `forward`, and `not-found` (no such adapter), `unsupported`.
    """
    try:
        interface.forward_with_adapter(
            as_u32(queue),
            as_text(adapter),
            as_u32s(input_pages),
            as_u32s(input_embeds),
            as_u32s(output_pages),
            as_u32s(output_embeds),
            as_u32s(mask),
        )
    except Err as error:
        raise PieError(error.value) from None
