"""Embeds tokens that were sampled on the device, before the host knows them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_inference.device.future import DeviceFuture, completed
from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import BatchResult, EmbedSampled

UNKNOWN = "the sampler's last sample failed, so there is no token to embed"


def embed_sampled(model: ServedModel, batch: EmbedSampled) -> DeviceFuture[BatchResult]:
    """Writes embeddings of the samplers' last tokens; tells the rows whose sampler has none.

    Those get zeros.
    """
    require_lengths("embed_sampled", batch.samplers, batch.positions, batch.embeds)
    require_below("embed_sampled: sampler", batch.samplers, model.samplers.size)
    require_below("embed_sampled: position", batch.positions, model.network.shape.max_position)
    require_below("embed_sampled: embed", batch.embeds, model.embeds.size)
    tokens = model.samplers.tokens.index_select(0, model.index(batch.samplers))
    # Who would have to wait for a GPU does not ask.
    if model.device.type == "cpu" and int(tokens.numpy().min(initial=0)) >= 0:
        model.embeds.write(batch.embeds, model.network.embed(tokens), batch.positions)
        return completed(BatchResult(refused={}))
    hidden = model.network.embed(tokens.clamp(min=0))
    hidden.masked_fill_((tokens < 0)[:, None], 0.0)
    model.embeds.write(batch.embeds, hidden, batch.positions)

    def answer(arrays: list[NDArray[Any]]) -> BatchResult:
        lacking = np.flatnonzero(arrays[0] < 0).tolist()
        return BatchResult(refused=dict.fromkeys(lacking, UNKNOWN))

    return DeviceFuture([tokens], answer)
