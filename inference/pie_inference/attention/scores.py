"""Attention with capped scores, which no kernel of PyTorch's has."""

from __future__ import annotations

import torch

from pie_inference.attention.masks import Visibility

MAX_SCORES = 1 << 24  # float32 scores at a time: bounds the memory


def capped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    seen: Visibility,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    """Softmax over `softcap * tanh(scale * q·k / softcap)`, in float32.

    Args:
        query: `[batch, heads, queries, head_dim]`.
        key: `[batch, kv_heads, keys, head_dim]`; consecutive heads share one.
        value: like `key`.
        seen: which keys the queries see.
        scale: of scores.
        softcap: what scores stay below.

    Returns:
        `[batch, heads, queries, head_dim]`.
    """
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    mask = seen.mask
    if seen.causal:
        above = torch.ones(queries, keys, dtype=torch.bool, device=query.device).triu_(1)
        mask = torch.zeros(above.shape, device=query.device).masked_fill_(above, float("-inf"))
        mask = mask.view(1, 1, queries, keys)
    step = max(1, MAX_SCORES // (batch * heads * keys))
    parts = [
        _capped(
            query[:, :, first : first + step],
            key,
            value,
            None if mask is None else mask[:, :, first : first + step],
            scale,
            softcap,
        )
        for first in range(0, queries, step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _capped(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    softcap: float,
) -> torch.Tensor:
    batch, heads, queries, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    # The query heads that share a key head are queries of one head: no key is repeated.
    shared = query.reshape(batch, kv_heads, -1, dim)
    scores = torch.matmul(shared, key.transpose(2, 3)).float()
    scores.mul_(scale / softcap).tanh_().mul_(softcap)
    if mask is not None:
        by_head = scores.view(batch, heads, queries, keys)
        by_head += mask
    weights = scores.softmax(-1).to(value.dtype)
    return torch.matmul(weights, value).view(batch, heads, queries, dim)
