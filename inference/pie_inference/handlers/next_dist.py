"""The most likely next tokens after hidden states."""

from __future__ import annotations

import numpy as np
import torch

from pie_inference.device.future import DeviceFuture, completed
from pie_inference.errors import BadBatch
from pie_inference.handlers.checks import require_below, require_lengths
from pie_inference.sampling.order import top_tokens
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import BatchResult, Distributions, NextDist


def next_dist(model: ServedModel, batch: NextDist) -> DeviceFuture[BatchResult]:
    """Top-K tokens and their probabilities in the float32 softmax over the whole vocabulary.

    Equal logits are ordered by token id, so that the first token is that of `argmax`.
    """
    require_lengths("next_dist", batch.embeds, batch.k)
    require_below("next_dist: embed", batch.embeds, model.embeds.size)
    vocabulary = model.network.shape.vocab_size
    if not batch.k.size:
        nothing = Distributions(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))
        return completed(BatchResult(distributions=nothing))
    if int(batch.k.min()) < 1 or int(batch.k.max()) > vocabulary:
        raise BadBatch(f"next_dist: k is not in 1 .. {vocabulary}")
    logits = model.network.logits(model.embeds.read(batch.embeds)).float()
    tokens = top_tokens(logits, int(batch.k.max()))
    probabilities = logits.softmax(1).gather(1, tokens)
    return DeviceFuture(
        [tokens.to(torch.int32), probabilities],
        lambda arrays: BatchResult(distributions=Distributions(*arrays)),
    )
