"""Forwards that are run before a model serves, to warm up and to measure, and dropped."""

from __future__ import annotations

import numpy as np

from pie_inference.handlers.base import ServedModel
from pie_inference.handlers.embeds import embed_text
from pie_inference.handlers.forward import forward
from pie_inference.handlers.sample import next_dist
from pie_py.wire.plan import EmbedText, Forward, Int32, NextDist


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
    none: Int32 = np.zeros((len(lengths), 0), np.int32)
    _run(model, lengths, positions, slots, none, none, k)


def run_step(model: ServedModel, count: int, context: int) -> None:
    """Runs a step of `count` sequences that decode: one input each, after `context` others, at
    least 1 and fewer than the slots of a share.

    Each has its share of the pool's pages, and attends to what is in them; the result is dropped. A
    further call with one more of context, or as much, finds their keys where decoding keeps them.
    """
    size = model.cache.page_size
    each = model.cache.pages // count
    ids = np.arange(count, dtype=np.int32)
    held = -(-context // size)
    pages: Int32 = (ids[:, None] * each + np.arange(held)).astype(np.int32)
    used = np.full((count, held), size, np.int32)
    used[:, -1] = context - (held - 1) * size
    slots = (ids * each + context // size) * size + context % size
    positions = np.full(count, context, np.int32)
    _run(model, [1] * count, positions, slots, pages, used, 1)


def _run(
    model: ServedModel,
    lengths: list[int],
    positions: Int32,
    slots: Int32,
    pages: Int32,
    used: Int32,
    k: int,
) -> None:
    """Runs inputs at positions `[t]`, after pages `[sequences, held]`, of which so many slots are
    used, and writes to slots `[t]`.
    """
    ids = np.arange(positions.size, dtype=np.int32)
    each = np.arange(len(lengths) + 1, dtype=np.int32)
    starts = np.cumsum([0, *lengths], dtype=np.int32)
    lasts = starts[1:] - 1
    embed_text(model, EmbedText(np.zeros_like(ids), positions, ids))
    forward(
        model,
        Forward(
            input_starts=starts,
            inputs=ids,
            page_starts=each * np.int32(pages.shape[1]),
            pages=pages.reshape(-1),
            page_used=used.reshape(-1),
            has_masked=np.zeros(len(lengths), np.int32),
            output_slots=slots,
            output_starts=each,
            outputs=lasts,
            mask_starts=np.zeros_like(each),
            mask=np.zeros(0, np.int32),
        ),
    )
    wanted = np.full(len(lengths), min(k, model.network.shape.vocab_size), np.int32)
    next_dist(model, NextDist(lasts, wanted))
