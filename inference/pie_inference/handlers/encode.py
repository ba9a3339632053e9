"""Handler of what encoders do."""

from __future__ import annotations

import numpy as np

from pie_inference.device import DeviceFuture
from pie_inference.errors import BadBatch
from pie_inference.handlers.base import (
    ServedEncoder,
    require_below,
    require_lengths,
    require_offsets,
)
from pie_py.wire.plan import BatchResult, Encode, Hidden


def encode(model: ServedEncoder, batch: Encode) -> DeviceFuture[BatchResult]:
    """The numbers of texts, in float32."""
    require_lengths("encode", batch.seconds, batch.raw)
    require_offsets("encode: starts", batch.starts, batch.raw.size, batch.tokens.size)
    require_below("encode: token", batch.tokens, model.description.vocab_size)
    lengths = np.diff(batch.starts)
    require_below("encode: tokens - 1", lengths - 1, model.description.max_position)
    if not lengths.size:
        raise BadBatch("encode: no text")
    numbers = model.encoder.run(batch.tokens, batch.starts, batch.seconds, batch.raw)
    return DeviceFuture([numbers], lambda arrays: BatchResult(values=Hidden(*arrays)))
