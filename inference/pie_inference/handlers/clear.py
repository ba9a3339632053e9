"""Clears what was to be written and was not, so that nothing of an earlier owner can be read."""

from __future__ import annotations

from pie_inference.handlers.checks import require_below
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import Clear


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
