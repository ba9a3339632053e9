"""Moves pages between the KV pool and host memory."""

from __future__ import annotations

import numpy as np

from pie_inference.errors import BadBatch
from pie_inference.handlers.base import NONE
from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import Clear, Int32, SwapIn, SwapOut


def swap_out(model: ServedModel, batch: SwapOut) -> None:
    """Copies pages to host pages."""
    _check(model, "swap_out", batch.pages, batch.hosts, batch.hosts)
    if batch.pages.size:
        model.host.swap_out(batch.pages, batch.hosts)


def swap_in(model: ServedModel, batch: SwapIn) -> None:
    """Copies host pages to pages."""
    _check(model, "swap_in", batch.pages, batch.hosts, batch.pages)
    if batch.pages.size:
        model.host.swap_in(batch.hosts, batch.pages)


def writes_host_pages(model: ServedModel, batch: SwapOut) -> Clear:
    """The host pages that pages are copied to."""
    return Clear(NONE, NONE, batch.hosts)


def writes_pages(model: ServedModel, batch: SwapIn) -> Clear:
    """All slots of the pages that host pages are copied to."""
    size = model.cache.page_size
    slots = batch.pages[:, None].astype(np.int64) * size + np.arange(size)
    return Clear(slots.reshape(-1).astype(np.int32), NONE, NONE)


def _check(model: ServedModel, kind: str, pages: Int32, hosts: Int32, written: Int32) -> None:
    require_lengths(kind, pages, hosts)
    require_below(f"{kind}: page", pages, model.cache.pages)
    require_below(f"{kind}: host page", hosts, model.host.pages)
    if np.unique(written).size != written.size:
        raise BadBatch(f"{kind}: a page is written twice")
