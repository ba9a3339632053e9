"""Puts tokens into embeds."""

from __future__ import annotations

from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import EmbedText


def embed_text(model: ServedModel, batch: EmbedText) -> None:
    """Writes token embeddings and positions."""
    require_lengths("embed_text", batch.tokens, batch.positions, batch.embeds)
    require_below("embed_text: token", batch.tokens, model.network.shape.vocab_size)
    require_below("embed_text: position", batch.positions, model.network.shape.max_position)
    require_below("embed_text: embed", batch.embeds, model.embeds.size)
    model.embeds.write(
        batch.embeds, model.network.embed(model.index(batch.tokens)), batch.positions
    )
