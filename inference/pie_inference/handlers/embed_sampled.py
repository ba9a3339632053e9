"""Embeds tokens that were sampled on the device, before the host knows them."""

from __future__ import annotations

import numpy as np

from pie_inference.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import EmbedSampled

UNKNOWN = "the sampler's last sample failed, so there is no token to embed"


def embed_sampled(model: ServedModel, batch: EmbedSampled) -> dict[int, str]:
    """Writes embeddings of the samplers' last tokens; tells the rows whose sampler has none.

    Those get zeros: the sampler's slot may hold a token of somebody else's.
    """
    require_lengths("embed_sampled", batch.samplers, batch.positions, batch.embeds)
    require_below("embed_sampled: sampler", batch.samplers, model.samplers.size)
    require_below("embed_sampled: position", batch.positions, model.network.shape.max_position)
    require_below("embed_sampled: embed", batch.embeds, model.embeds.size)
    tokens = model.samplers.tokens[model.index(batch.samplers)]
    model.embeds.write(batch.embeds, model.network.embed(tokens), batch.positions)
    missing = np.flatnonzero(~model.samplers.known[batch.samplers])
    model.embeds.clear(batch.embeds[missing])
    return dict.fromkeys(missing.tolist(), UNKNOWN)
