"""Forwards that are run before a model serves, to warm up and to measure, and dropped."""

from __future__ import annotations

import numpy as np

from pie_inference.handlers.base import ServedModel
from pie_inference.handlers.embeds import embed_text
from pie_inference.handlers.forward import forward
from pie_inference.handlers.sample import next_dist
from pie_py.wire.plan import EmbedText, Forward, NextDist


def run_trial(model: ServedModel, lengths: list[int], k: int = 256) -> None:
    """Runs sequences of these lengths and asks for the `k` tokens that may follow each.

    They write to scratch slots, or, one input each, to a page each, as decoding does; and to embeds
    that have no owner yet. All together they are at most `max_batch_tokens` inputs, and as many as
    there are embeds.
    """
    count = sum(lengths)
    ids = np.arange(count, dtype=np.int32)
    slots = np.full(count, -1, np.int32)
    if model.graphs is not None and count == len(lengths) <= model.cache.pages:
        slots = ids * np.int32(model.cache.page_size)
    positions = np.concatenate([np.arange(length, dtype=np.int32) for length in lengths])
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    lasts = starts[1:] - 1
    each = np.zeros(len(lengths), np.int32)
    none = each[:0]
    embed_text(model, EmbedText(np.zeros_like(ids), positions, ids))
    forward(
        model,
        Forward(
            input_starts=starts,
            inputs=ids,
            page_starts=np.zeros_like(starts),
            pages=none,
            page_used=none,
            has_masked=each,
            output_slots=slots,
            output_starts=np.arange(len(starts), dtype=np.int32),
            outputs=lasts,
            mask_starts=np.zeros_like(starts),
            mask=none,
        ),
    )
    wanted = np.full(len(lengths), min(k, model.network.shape.vocab_size), np.int32)
    next_dist(model, NextDist(lasts, wanted))
