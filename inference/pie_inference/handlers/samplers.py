"""Makes samplers, and tells them of tokens that they did not choose."""

from __future__ import annotations

import numpy as np

from pie_inference.errors import BadBatch
from pie_inference.handlers.checks import require_below, require_lengths, require_offsets
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import FeedSampler, SetSampler


def set_sampler(model: ServedModel, batch: SetSampler) -> None:
    """Puts new samplers into slots; whatever was there is forgotten."""
    pool = model.samplers
    count = batch.samplers.size
    require_lengths("set_sampler", batch.samplers, batch.top_k, batch.rows)
    require_lengths("set_sampler: biases", batch.bias_tokens, batch.biases)
    require_below("set_sampler: sampler", batch.samplers, pool.size)
    require_below("set_sampler: row + 1", batch.rows + 1, pool.count_rows + 1)
    require_offsets("set_sampler: bias_starts", batch.bias_starts, count, batch.bias_tokens.size)
    require_below("set_sampler: token", batch.bias_tokens, model.network.shape.vocab_size)
    if batch.numbers.shape != (count, 6) or batch.seeds.shape != (count, 2):
        raise BadBatch("set_sampler: numbers are not [n, 6], or seeds not [n, 2]")
    # The arrays are views of the message, which must not be kept.
    pool.set(batch.samplers, batch.numbers, batch.top_k, batch.seeds, batch.rows)
    for i in np.flatnonzero(np.diff(batch.bias_starts)).tolist():
        part = slice(*batch.bias_starts[i : i + 2].tolist())
        tokens, values = batch.bias_tokens[part].copy(), batch.biases[part].copy()
        pool.set_bias(int(batch.samplers[i]), tokens, values)


def feed_sampler(model: ServedModel, batch: FeedSampler) -> None:
    """Counts tokens for penalties."""
    count = batch.samplers.size
    require_lengths("feed_sampler", batch.samplers, batch.generated)
    require_offsets("feed_sampler: starts", batch.starts, count, batch.tokens.size)
    require_below("feed_sampler: sampler", batch.samplers, model.samplers.size)
    require_below("feed_sampler: token", batch.tokens, model.network.shape.vocab_size)
    lengths = np.diff(batch.starts)
    model.samplers.feed(
        np.repeat(batch.samplers, lengths),
        batch.tokens,
        np.repeat(batch.generated, lengths).astype(np.bool_),
    )
