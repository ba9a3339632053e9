"""Copies embeds."""

from __future__ import annotations

import numpy as np

from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import CopyEmbed


def copy_embed(model: ServedModel, batch: CopyEmbed) -> None:
    """Writes hidden states of other embeds, and their positions where no others are given."""
    require_lengths("copy_embed", batch.sources, batch.positions, batch.embeds)
    require_below("copy_embed: source", batch.sources, model.embeds.size)
    told = np.maximum(batch.positions, 0)
    require_below("copy_embed: position", told, model.network.shape.max_position)
    require_below("copy_embed: embed", batch.embeds, model.embeds.size)
    pool = model.embeds
    positions = np.where(batch.positions < 0, pool.positions[batch.sources], told)
    pool.copy(batch.sources, batch.embeds, positions)
