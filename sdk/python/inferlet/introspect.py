"""Attention of a context's last tokens: which tokens matter, and which can be dropped."""

from __future__ import annotations

from typing import Literal

from inferlet import raw
from inferlet._loop import ready
from inferlet._pages import spans
from inferlet._sequence import UNKNOWN
from inferlet.context import Context

Detail = Literal["total", "layers", "heads"]


async def attention(
    ctx: Context, *, observed: int = 1, detail: Detail = "total"
) -> list[list[float]]:
    """Attention that the last tokens pay to all tokens of a context, `[rows, tokens]`.

    The last tokens run once more, beside the context, which stays as it is. A number is the sum
    over the observed tokens of their attention probabilities, so a row adds up to `observed`.

    Args:
        ctx: flushed first, if something waits in it.
        observed: how many of the last tokens.
        detail: "total" is one row, averaged over layers and heads; "layers" one a layer; "heads"
            one a head, layer by layer.

    Raises:
        ValueError: if there are fewer tokens, or the observed ones are not known.
        PieError: `limit-exceeded` (too many numbers or inputs), `unsupported`, `out-of-resources`.
    """
    await ctx.flush()
    length = ctx.seq_len
    before = length - observed
    tokens = ctx.tokens[before:]
    if not 0 < observed <= length or UNKNOWN in tokens:
        raise ValueError(
            f"{observed} tokens can't be observed: {length} are there, or some unknown"
        )
    queue = ctx.queue
    pages = spans(ctx.sequence.pages.addresses[: -(-length // ctx.page_size)])
    embeds = [raw.alloc_emb(queue, observed), observed]
    try:
        positions = spans([ctx.sequence.position(place) for place in range(before, length)])
        raw.embed_txt(queue, tokens, positions, embeds)
        # They see what came before and each other, but not what the pages hold of themselves.
        mask: list[int] = []
        for i in range(observed):
            mask += (5, 0, before, observed, i + 1, observed - i - 1)
        future = raw.forward_with_attention(
            queue, pages, embeds, [], [], mask, observed, detail, ctx.sequence.adapter or ""
        )
    finally:
        raw.dealloc_emb(queue, embeds)
    await ready(future)
    rows, numbers = raw.take_attention(future)
    width = length + observed
    return [
        numbers[at : at + before] + numbers[at + length : at + width]
        for at in range(0, rows * width, width)
    ]
