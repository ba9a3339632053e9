"""Masks slots of KV pages."""

from __future__ import annotations

from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import MaskKv


def mask_kv(model: ServedModel, batch: MaskKv) -> None:
    """Sets the mask word of pages."""
    require_lengths("mask_kv", batch.pages, batch.masks)
    require_below("mask_kv: page", batch.pages, model.cache.pages)
    model.cache.mask(batch.pages, batch.masks)
