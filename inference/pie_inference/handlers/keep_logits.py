"""Keeps logits, for choices of this model or another one to mix in."""

from __future__ import annotations

from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.operations import LOGIT_ROWS
from pie_py.wire.plan import KeepLogits


def keep_logits(model: ServedModel, batch: KeepLogits) -> None:
    """Computes the logits after embeds, and keeps them."""
    require_lengths("keep_logits", batch.embeds, batch.rows)
    require_below("keep_logits: embed", batch.embeds, model.embeds.size)
    require_below("keep_logits: row", batch.rows, LOGIT_ROWS)
    logits = model.network.logits(model.embeds.read(batch.embeds))
    model.kept_logits.put(model.index(batch.rows), logits)
