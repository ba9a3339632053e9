"""Interface `forward`: the forward pass."""

from __future__ import annotations

from inferlet._bindings import Err
from inferlet._bindings import forward as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_u32, as_u32s


def forward(
    queue: int,
    input_pages: list[int],
    input_embeds: list[int],
    output_pages: list[int],
    output_embeds: list[int],
    mask: list[int],
) -> None:
    """Runs the model over the input embeds, in order.

    Each input attends to every live slot of `input-pages`, and to those inputs whose position is
    lower, or equal and not after it in the list. An explicit `mask` replaces this rule: one row
    an input, flattened as `[runs, length, length, ...]` for each row, the lengths alternating
    hidden, visible, hidden, ... over the columns: the filled slots of `input-pages` in order,
    then the inputs. A masked slot is never attended to, whatever the mask says.

    If `output-pages` is not empty, the inputs' keys and values go into its empty slots, from the
    first on. The last inputs' hidden states go into `output-embeds`, as many as it names. Pages
    may be input and output at once: the inputs see the slots filled before this call.

    Errors: `invalid-handle`, `invalid-argument`, `page-full` (too little room), `immutable`,
    `limit-exceeded` (more inputs than `max_batch_tokens`, a mask of over 262144 numbers or 2^28 cells,
    too many queued commands).
    """
    try:
        interface.forward(
            as_u32(queue),
            as_u32s(input_pages),
            as_u32s(input_embeds),
            as_u32s(output_pages),
            as_u32s(output_embeds),
            as_u32s(mask),
        )
    except Err as error:
        raise PieError(error.value) from None


def mask_kvpage(queue: int, pages: list[int], masks: list[int]) -> None:
    """Sets which filled slots of pages are masked: one word a page, bit `i` set hides slot `i`. A
    bit of an empty slot is an error.
    Errors: `invalid-handle`, `invalid-argument`, `immutable`, `limit-exceeded`.
    """
    try:
        interface.mask_kvpage(as_u32(queue), as_u32s(pages), as_u32s(masks))
    except Err as error:
        raise PieError(error.value) from None
