"""Embeds tokens that were sampled on the device, before the host knows them."""

from __future__ import annotations

import numpy as np

from pie_inference.checks import require_below, require_lengths
from pie_inference.later import Later
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import EmbedSampled

UNKNOWN = "the sampler's last sample failed, so there is no token to embed"


def embed_sampled(model: ServedModel, batch: EmbedSampled) -> Later[dict[int, str]]:
    """Writes embeddings of the samplers' last tokens; tells the rows whose sampler has none.

    Those get zeros.
    """
    require_lengths("embed_sampled", batch.samplers, batch.positions, batch.embeds)
    require_below("embed_sampled: sampler", batch.samplers, model.samplers.size)
    require_below("embed_sampled: position", batch.positions, model.network.shape.max_position)
    require_below("embed_sampled: embed", batch.embeds, model.embeds.size)
    tokens = model.samplers.tokens[model.index(batch.samplers)]
    hidden = model.network.embed(tokens.clamp(min=0))
    missing = tokens < 0
    if model.device.type == "cuda" or bool(missing.any()):  # who has to wait for a GPU does not ask
        hidden.masked_fill_(missing[:, None], 0.0)
    model.embeds.write(batch.embeds, hidden, batch.positions)
    return Later(
        [tokens], lambda arrays: dict.fromkeys(np.flatnonzero(arrays[0] < 0).tolist(), UNKNOWN)
    )
