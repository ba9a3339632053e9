"""Turns keys of the KV pool to other positions."""

from __future__ import annotations

import torch

from pie_inference.device.upload import upload
from pie_inference.errors import BadBatch
from pie_inference.handlers.base import NONE
from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import Clear, ShiftKv


def shift_kv(model: ServedModel, batch: ShiftKv) -> None:
    """Adds distances to the positions of slots; their keys become what they would be there.

    A key is stored turned by its position, so it is turned by the distance more, in float32.
    """
    require_lengths("shift_kv", batch.slots, batch.distances)
    require_below("shift_kv: slot", batch.slots, model.cache.slots)
    turns = model.network.turns()
    if turns is None:
        raise BadBatch("shift_kv: the keys of this model cannot be turned")
    distances = upload(batch.distances.copy(), model.device).float()[:, None]

    def turned(layer: int, keys: torch.Tensor) -> torch.Tensor:
        turn = turns[layer]
        return keys if turn is None else turn.turned(keys, distances)

    model.cache.shift(batch.slots, batch.distances, turned)


def writes_slots(model: ServedModel, batch: ShiftKv) -> Clear:
    """The slots."""
    return Clear(batch.slots, NONE, NONE)
