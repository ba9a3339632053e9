"""Steps of a generation that the server is given before their tokens are known.

A step is the forward of one token and the choice of the next. While its token is on its way, nothing of
the context shows it: the context keeps the state that it would have without it, and takes the step over
(`confirm`) or undoes it (`retract`). Two embeds take turns, so that an undone step has left the hidden
state before it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from inferlet import _bindings, raw
from inferlet._pages import drop, spans
from inferlet.errors import PieError

if TYPE_CHECKING:
    from inferlet._sequence import Sequence

# Errors for which a program that does not run ahead might never have asked.
SCARCE = ("out-of-resources", "limit-exceeded")


class Ahead:
    """One step that the server has been given, after all that its context knows of."""

    __slots__ = ("embed", "future", "pages", "token")

    def __init__(self, embed: list[int], future: int, pages: int) -> None:
        self.embed = embed  # span of the embed with the hidden state after the step's token
        self.future = future  # of the token after that
        self.pages = pages  # that the context had before
        self.token = -1  # the step's token, once it is known


def look_ahead(ctx: Sequence, sampler: int) -> Ahead | None:
    """Queues the step of the token that a sampler has been asked for; None if there is no room for it.

    The context has nothing pending, and owns its last page.
    """
    queue = ctx._queue
    size = ctx._model.page_size
    start = ctx._length
    first = start // size
    pages = len(ctx._pages)
    # The hot path: without the checks and the calls of `raw`.
    try:
        if not ctx._spare:
            ctx._spare = [raw.alloc_emb(queue, 1), 1]
        embed = ctx._spare
        if first == pages:
            ctx._grow(first + 1)
        inputs = ctx._inputs(-(-start // size))
        future: int = _bindings.sample.step(
            queue, sampler, start, embed[0], inputs, ctx._pages[first], ctx._adapter or ""
        )
    except (_bindings.Err, PieError) as error:
        _undo(ctx, pages)
        text = str(error) if isinstance(error, PieError) else error.value
        if not text.startswith(SCARCE):
            raise PieError(text) from None
        return None
    ctx._in_flight = True
    ctx._ahead = ahead = Ahead(embed, future, pages)
    return ahead


def confirm(ctx: Sequence, ahead: Ahead) -> int | None:
    """Makes a step part of its context, and gives the future of the token after it.

    None if the step is undone, because the program goes on otherwise than with the step's token.
    """
    if ctx._ahead is not ahead:
        return None
    if ctx._pending != [ahead.token]:
        retract(ctx)
        return None
    ctx._ahead = None
    ctx._length += 1
    ctx._tokens.append(ahead.token)
    ctx._pending = []
    ctx._embed, ctx._spare = ahead.embed, ctx._embed
    ctx._hidden = True
    return ahead.future


def retract(ctx: Sequence) -> None:
    """Undoes the step that a context is ahead, if it is. It may still run, unseen."""
    ahead = ctx._ahead
    if ahead is None:
        return
    ctx._ahead = None
    ctx._in_flight = False  # but for this step
    ctx._unseen = True
    with suppress(PieError):  # gone with a lost worker, or taken with an error
        raw.cancel(ahead.future)
    _undo(ctx, ahead.pages)


def _undo(ctx: Sequence, pages: int) -> None:
    """Empties the slots after the context's tokens, and gives pages back that it did not have."""
    first, used = divmod(ctx._length, ctx._model.page_size)
    if first < pages:
        raw.truncate_kvpage(ctx._queue, [ctx._pages[first], 1], [used])
    if len(ctx._pages) > pages:
        free = drop(ctx._model._shared_pages, ctx._pages[pages:])
        del ctx._pages[pages:]
        raw.dealloc_kvpage(ctx._queue, spans(free))
