"""Handlers that copy, mask, shift and swap slots and pages of the KV pool, and clear all pools."""

from __future__ import annotations

import numpy as np
import torch

from pie_inference.device import upload
from pie_inference.errors import BadBatch
from pie_inference.handlers.base import NONE, ServedModel, require_below, require_lengths
from pie_py.wire.plan import Clear, CopyKv, Int32, MaskKv, ShiftKv, SwapIn, SwapOut


def copy_kv(model: ServedModel, batch: CopyKv) -> None:
    """Copies slots with their masks, in order."""
    require_lengths("copy_kv", batch.sources, batch.targets)
    require_below("copy_kv: source", batch.sources, model.cache.slots)
    require_below("copy_kv: target", batch.targets, model.cache.slots)
    model.cache.copy(batch.sources, batch.targets)


def mask_kv(model: ServedModel, batch: MaskKv) -> None:
    """Sets the mask word of pages."""
    require_lengths("mask_kv", batch.pages, batch.masks)
    require_below("mask_kv: page", batch.pages, model.cache.pages)
    model.cache.mask(batch.pages, batch.masks)


def shift_kv(model: ServedModel, batch: ShiftKv) -> None:
    """Adds distances to the positions of slots; their keys become what they would be there.

    A key is stored turned by its position, so it is turned by the distance more, in float32.
    """
    require_lengths("shift_kv", batch.slots, batch.distances)
    require_below("shift_kv: slot", batch.slots, model.cache.slots)
    turns = model.network.turns()
    if turns is None:
        raise BadBatch("shift_kv: the keys of this model cannot be turned")
    distances = upload(batch.distances.copy(), model.device).float()[:, None]

    def turned(layer: int, keys: torch.Tensor) -> torch.Tensor:
        turn = turns[layer]
        return keys if turn is None else turn.turned(keys, distances)

    model.cache.shift(batch.slots, batch.distances, turned)


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


def clear(model: ServedModel, batch: Clear) -> None:
    """Writes zeros, and forgets what samplers have chosen."""
    require_below("clear: slot", batch.slots, model.cache.slots)
    require_below("clear: embed", batch.embeds, model.embeds.size)
    require_below("clear: host page", batch.hosts, model.host.pages)
    require_below("clear: sampler", batch.samplers, model.samplers.size)
    model.cache.clear(batch.slots)
    model.embeds.clear(batch.embeds)
    model.host.clear(batch.hosts)
    model.samplers.forget(batch.samplers)
