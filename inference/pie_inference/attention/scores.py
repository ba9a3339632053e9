"""Attention with capped scores, or sinks, which no kernel of PyTorch's has."""

from __future__ import annotations

import torch

from pie_inference.attention import AttentionOptions
from pie_inference.attention.groups import Visibility, added_mask

MAX_SCORES = 1 << 24  # float32 scores at a time: bounds the memory


def scored_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: Visibility,
    options: AttentionOptions,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax over `scale * q·k`, capped or not, in float32.

    Args:
        query: `[batch, heads, queries, head_dim]`.
        key: `[batch, kv_heads, keys, head_dim]`; consecutive heads share one.
        value: like `key`.
        seen: which keys the queries see.
        options: of the layer.
        sinks: `[heads]`, scores of a key that all queries see, and whose value is zero.

    Returns:
        `[batch, heads, queries, head_dim]`.
    """
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    mask = seen.mask
    if seen.causal:
        above = torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu_(1)
        mask = added_mask(above, torch.float32).view(1, 1, queries, keys)
    step = max(1, MAX_SCORES // (batch * heads * keys))
    parts = [
        _scored(
            query[:, :, first : first + step],
            key,
            value,
            None if mask is None else mask[:, :, first : first + step],
            options,
            sinks,
        )
        for first in range(0, queries, step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _scored(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    options: AttentionOptions,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    scale, softcap = options.scale_of(dim), options.softcap
    # The query heads that share a key head are queries of one head: no key is repeated.
    shared = query.reshape(batch, kv_heads, -1, dim)
    scores = torch.matmul(shared, key.transpose(2, 3)).float()
    if softcap is None:
        scores.mul_(scale)
    else:
        scores.mul_(scale / softcap).tanh_().mul_(softcap)
    by_head = scores.view(batch, heads, queries, keys)
    if mask is not None:
        by_head += mask
    weights = softmax_beside(by_head, None if sinks is None else sinks.float().view(-1, 1, 1))
    return torch.matmul(weights.view(scores.shape).to(value.dtype), value).view(query.shape)


def softmax_beside(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Softmax of scores `[..., keys]`, of whose weights a further score `[..., 1]` takes a part."""
    if sinks is None:
        return scores.softmax(-1)
    most = scores.amax(-1, keepdim=True).maximum(sinks)
    weights = (scores - most).exp_()
    return weights.div_(weights.sum(-1, keepdim=True) + (sinks - most).exp())
