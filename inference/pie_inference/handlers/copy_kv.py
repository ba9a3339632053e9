"""Copies slots of the KV pool."""

from __future__ import annotations

from pie_inference.handlers.base import NONE
from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import Clear, CopyKv


def copy_kv(model: ServedModel, batch: CopyKv) -> None:
    """Copies slots with their masks, in order."""
    require_lengths("copy_kv", batch.sources, batch.targets)
    require_below("copy_kv: source", batch.sources, model.cache.slots)
    require_below("copy_kv: target", batch.targets, model.cache.slots)
    model.cache.copy(batch.sources, batch.targets)


def writes_targets(model: ServedModel, batch: CopyKv) -> Clear:
    """The slots that are copied to."""
    return Clear(batch.targets, NONE, NONE)
