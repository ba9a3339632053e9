"""Clears what was to be written and was not, so that nothing of an earlier owner can be read."""

from __future__ import annotations

import numpy as np

from pie_inference.handlers.checks import require_below
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import (
    Batch,
    Clear,
    CopyEmbed,
    CopyKv,
    EmbedImage,
    EmbedSampled,
    EmbedText,
    Forward,
    Int32,
    SwapIn,
    SwapOut,
)


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


def written_by(model: ServedModel, batch: Batch) -> Clear:
    """What a batch that has failed was to write."""
    slots = embeds = hosts = np.zeros(0, np.int32)
    match batch:
        case Forward():
            slots, embeds = batch.output_slots[batch.output_slots >= 0], batch.outputs
        case EmbedText() | EmbedImage() | CopyEmbed() | EmbedSampled():
            embeds = batch.embeds
        case CopyKv():
            slots = batch.targets
        case SwapIn():
            slots = _slots(batch.pages, model.cache.page_size)
        case SwapOut():
            hosts = batch.hosts
    return Clear(slots, embeds, hosts)


def _slots(pages: Int32, size: int) -> Int32:
    slots = pages[:, None].astype(np.int64) * size + np.arange(size)
    return slots.reshape(-1).astype(np.int32)
