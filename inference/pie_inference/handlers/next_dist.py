"""The most likely next tokens after hidden states."""

from __future__ import annotations

import numpy as np
import torch

from pie_inference.checks import require_below, require_lengths
from pie_inference.errors import BadBatch
from pie_inference.served_model import ServedModel
from pie_py.wire.plan import Distributions, NextDist


def next_dist(model: ServedModel, batch: NextDist) -> Distributions:
    """Top-K tokens and their probabilities in the float32 softmax over the whole vocabulary.

    Equal logits are ordered by token id, so that the first token is that of `argmax`.
    """
    require_lengths("next_dist", batch.embeds, batch.k)
    require_below("next_dist: embed", batch.embeds, model.embeds.size)
    vocabulary = model.network.shape.vocab_size
    if not batch.k.size:
        return Distributions(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))
    if int(batch.k.min()) < 1 or int(batch.k.max()) > vocabulary:
        raise BadBatch(f"next_dist: k is not in 1 .. {vocabulary}")
    logits = model.network.logits(model.embeds.read(batch.embeds)).float()
    tokens = top_tokens(logits, int(batch.k.max()))
    probabilities = logits.softmax(1).gather(1, tokens)
    return Distributions(tokens.to(torch.int32).cpu().numpy(), probabilities.cpu().numpy())


def top_tokens(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Ids `[n, k]`, int64, of the largest of float32 logits `[n, vocabulary]`, ties by lower id.

    On a CPU NumPy selects: it has vector instructions for that, and takes a fraction of torch's time.
    """
    on_cpu = logits.device.type == "cpu"
    if k == 1:
        if on_cpu:
            return torch.from_numpy(logits.numpy().argmax(1, keepdims=True))
        return logits.argmax(1, keepdim=True)
    keys = _sort_keys(logits)
    if on_cpu:
        array = keys.numpy()
        largest = np.partition(array, array.shape[1] - k, axis=1)[:, -k:]
        largest.sort(axis=1)
        best = torch.from_numpy(largest[:, ::-1].copy())
    else:
        best = keys.topk(k, dim=1).values
    return (best & 0xFFFFFFFF).neg_().add_(0xFFFFFFFF)


def _sort_keys(logits: torch.Tensor) -> torch.Tensor:
    """Distinct int64 keys that sort by logit, and by descending id among equal logits."""
    bits = (logits + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0: equal numbers, equal bits
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # float order as integer order
    ids = torch.arange(logits.shape[1], device=logits.device)
    return (ordered.to(torch.int64) << 32) | (0xFFFFFFFF - ids)
