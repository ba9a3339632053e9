"""Ours for modules that compute attention by themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import nn

from pie_inference.models.by_transformers.interface import asking, attention

Forward = Callable[..., Any]


def give_ours(module: nn.Module) -> None:
    """Puts our attention where modules of a class that is known have their own."""
    for part in module.modules():
        name = type(part).__name__
        if name in _METHODS:
            part._attn = partial(_METHODS[name], part, part._attn)  # type: ignore[assignment]
        if name in _FORWARDS:
            part.forward = partial(_FORWARDS[name], part, part.forward)


def _gpt_neox_japanese(part: Any, own: Forward, q: Any, k: Any, v: Any, mask: Any) -> Any:
    if not asking():
        return own(q, k, v, mask)
    found, _ = attention(part, q, k, v, mask, scaling=1 / part.norm_factor)
    return found.transpose(1, 2), None


def _openai(part: Any, own: Forward, q: Any, k: Any, v: Any, mask: Any, more: Any = False) -> Any:
    if not asking():
        return own(q, k, v, mask, more)
    scale = v.shape[-1] ** -0.5 if part.scale else 1.0
    found, _ = attention(part, q, k.transpose(2, 3), v, mask, scaling=scale)
    return [found.transpose(1, 2)]


def _bloom(
    part: Any,
    own: Forward,
    hidden: Any,
    residual: Any,
    *,
    alibi: Any,
    attention_mask: Any,
    **more: Any,
) -> Any:
    if not asking():
        return own(hidden, residual, alibi=alibi, attention_mask=attention_mask, **more)
    query, key, value = part._reshape(part.query_key_value(hidden))
    slopes = alibi[:, 0, 1].float()  # what is added for the key at position 1
    scale = part.inv_norm_factor
    found, _ = attention(part, query, key, value, attention_mask, scaling=scale, slopes=slopes)
    return part.dense(found.flatten(2)) + residual, None


def _mpt(
    part: Any, own: Forward, hidden: Any, position_bias: Any, *, attention_mask: Any, **more: Any
) -> Any:
    if not asking():
        return own(hidden, position_bias, attention_mask=attention_mask, **more)
    mixed = part.Wqkv(hidden)
    if part.clip_qkv:
        mixed = mixed.clamp(min=-part.clip_qkv, max=part.clip_qkv)
    heads = [x.unflatten(2, (part.n_heads, -1)).transpose(1, 2) for x in mixed.chunk(3, dim=2)]
    slopes = position_bias[:, 0, -1] - position_bias[:, 0, -2]
    scale = part.softmax_scale
    found, _ = attention(part, *heads, attention_mask, scaling=scale, slopes=slopes.float())
    return part.out_proj(found.flatten(2)), None


_METHODS: dict[str, Forward] = {
    "GPTNeoXJapaneseAttention": _gpt_neox_japanese,
    "Attention": _openai,
}
_FORWARDS: dict[str, Forward] = {"BloomAttention": _bloom, "MptAttention": _mpt}
