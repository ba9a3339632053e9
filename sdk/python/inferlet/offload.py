"""Contexts out of the KV pool and back: for programs that hold many, or wait long.

::

    offload.swap_out(ctx)
    answer = await http.get(url)
    offload.swap_in(ctx)
"""

from __future__ import annotations

import json
from typing import Any

from inferlet import raw
from inferlet._pages import spans
from inferlet.context import Context
from inferlet.model import Model


def swap_out(ctx: Context) -> None:
    """Moves a context's pages to the server's host memory; until `swap_in` it can't be used.

    Pages that forks share stay.

    Raises:
        PieError: `busy` for pages that are saved or were opened, `out-of-resources` if the host
            memory is full, `limit-exceeded`.
    """
    sequence = ctx.sequence
    sequence.settle()
    raw.swap_out(sequence.queue, spans(sequence.pages.unshared()))


def swap_in(ctx: Context) -> None:
    """Brings a context's pages back. Does nothing if they are there.

    Raises:
        PieError: `out-of-resources`, `limit-exceeded`.
    """
    raw.swap_in(ctx.queue, spans(ctx.sequence.pages.addresses))


def discard(ctx: Context) -> None:
    """Gives a context's pages up: the next run computes its tokens again.

    Raises:
        ValueError: if its tokens are not all known: it was opened, or holds an image.
    """
    ctx.sequence.discard()


def costs(model: Model) -> dict[str, Any]:
    """Costs of keeping, moving and recomputing pages; see `kv-costs` in the contract.

    Raises:
        PieError: `unsupported` if the server has not measured it.
    """
    found: dict[str, Any] = json.loads(raw.kv_costs(model.name))
    return found
