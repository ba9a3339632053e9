"""Steps that are run for their own sake, before anybody owns anything: to warm up, and to measure."""

from __future__ import annotations

import numpy as np

from pie_inference import handlers
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import EmbedText, Forward, NextDist


def run_trial(model: ServedModel, lengths: list[int], k: int = 256) -> None:
    """Runs sequences of these lengths and asks for the `k` tokens that may follow each.

    They write to scratch slots, or, one input each, to a page each, as decoding does; and to embeds that
    no one owns yet. All together they are at most `max_batch_tokens` inputs, and as many as there are
    embeds.
    """
    count = sum(lengths)
    ids = np.arange(count, dtype=np.int32)
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    lasts = starts[1:] - 1
    none = np.zeros(0, np.int32)
    nowhere = np.zeros(len(lengths) + 1, np.int32)
    slots = np.full(count, -1, np.int32)
    if model.graphs is not None and count == len(lengths) <= model.cache.pages:
        slots = ids * np.int32(model.cache.page_size)
    positions = (ids - np.repeat(starts[:-1], lengths)).astype(np.int32)
    handlers.embed_text(model, EmbedText(np.zeros(count, np.int32), positions, ids))
    handlers.forward(
        model,
        Forward(
            input_starts=starts,
            inputs=ids,
            page_starts=nowhere,
            pages=none,
            page_used=none,
            has_masked=np.zeros(len(lengths), np.int32),
            output_slots=slots,
            output_starts=np.arange(len(lengths) + 1, dtype=np.int32),
            outputs=lasts,
            mask_starts=nowhere,
            mask=none,
        ),
    )
    wanted = np.full(len(lengths), min(k, model.network.shape.vocab_size), np.int32)
    handlers.next_dist(model, NextDist(lasts, wanted))
