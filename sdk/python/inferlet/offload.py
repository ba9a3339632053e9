"""Contexts out of the KV pool and back: for programs that hold many, or wait long.

::

    offload.swap_out(ctx)
    answer = await http.get(url)
    offload.swap_in(ctx)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from inferlet import raw
from inferlet._pages import spans
from inferlet._sequence import UNKNOWN

if TYPE_CHECKING:
    from inferlet.context import Context
    from inferlet.model import Model


def swap_out(ctx: Context) -> None:
    """Moves a context's pages to the server's host memory; until `swap_in` it can't be used.

    Pages that forks share stay.

    Raises:
        PieError: `busy` for pages that are saved or were opened, `out-of-resources` if the host
            memory is full, `limit-exceeded`.
    """
    ctx._settle()
    shared = ctx._model._shared_pages
    own = [page for page in ctx._pages if page not in shared]
    raw.swap_out(ctx._queue, spans(own))


def swap_in(ctx: Context) -> None:
    """Brings a context's pages back. Does nothing if they are there.

    Raises:
        PieError: `out-of-resources`, `limit-exceeded`.
    """
    raw.swap_in(ctx._queue, spans(ctx._pages))


def discard(ctx: Context) -> None:
    """Gives a context's pages up: the next run computes its tokens anew.

    Raises:
        ValueError: if its tokens are not all known: it was opened, or holds an image.
    """
    if UNKNOWN in ctx._tokens:
        raise ValueError("a context whose tokens are not known can't be computed anew")
    ctx._settle()
    tokens = ctx._tokens[:]
    ctx._set_length(0)
    ctx._pending = tokens + ctx._pending


def costs(model: Model) -> dict[str, Any]:
    """What keeping, moving and recomputing pages costs; see `kv-costs` in the contract.

    Raises:
        PieError: `unsupported` if the server has not measured it.
    """
    found: dict[str, Any] = json.loads(raw.kv_costs(model.name))
    return found
