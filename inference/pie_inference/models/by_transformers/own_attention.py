"""Ours for modules that compute attention, or count positions, by themselves."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from pie_inference.errors import LoadError
from pie_inference.models.by_transformers.interface import asked, attention

Forward = Callable[..., Any]


def give_ours(module: nn.Module, takes_positions: bool) -> None:
    """Puts our attention where modules of a class that is known have their own, and positions where
    the whole does not take them.
    """
    for name, part in module.named_modules():
        kind = type(part).__name__
        if type(part).__module__.endswith("modeling_openai") and kind == "Attention":
            kind = "OpenAIGPTAttention"
        if kind in _METHODS:
            part._attn = _either(part._attn, _METHODS[kind], part)
        if kind in _FORWARDS:
            part.forward = _either(part.forward, _FORWARDS[kind], part)
        counts = not takes_positions and name.endswith("embed_positions")
        if counts and "position_ids" in inspect.signature(part.forward).parameters:
            part.forward = _either(part.forward, _embed_positions, part.forward)


def _either(own: Forward, ours: Forward, part: Any) -> Forward:
    """Ours while our attention is asked, with the part; else a module's own."""

    def chosen(*given: Any, **more: Any) -> Any:
        return own(*given, **more) if asked() is None else ours(part, *given, **more)

    return chosen


def _embed_positions(own: Forward, *given: Any, **more: Any) -> Any:
    by = asked()
    assert by is not None
    return own(*given, **{**more, "position_ids": by.positions})


def _causal(query: Any, window: int | None = None) -> Any:
    """The mask of modules that have it in a buffer of theirs."""
    from transformers import masking_utils as masks

    by = asked()
    assert by is not None
    seen = masks.causal_mask_function
    if window is not None:
        seen = masks.sliding_window_causal_mask_function(window)
    return by.mask(query.shape[2], seen, query.device)


def _gpt_neo(part: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    window = part.config.window_size if part.attention_type == "local" else None
    found, _ = attention(part, q, k, v, _causal(q, window), scaling=1.0)
    return found.transpose(1, 2), None


def _gpt_neox_japanese(part: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    found, _ = attention(part, q, k, v, mask, scaling=1 / part.norm_factor)
    return found.transpose(1, 2), None


def _openai(part: Any, q: Any, k: Any, v: Any, mask: Any, more: Any = False) -> Any:
    scale = v.shape[-1] ** -0.5 if part.scale else 1.0
    found, _ = attention(part, q, k.transpose(2, 3), v, _causal(q), scaling=scale)
    return [found.transpose(1, 2)]


def _xglm(part: Any, hidden: Any, *given: Any, **more: Any) -> Any:
    products = (made(hidden) for made in (part.q_proj, part.k_proj, part.v_proj))
    query, key, value = (x.unflatten(2, (part.num_heads, -1)).transpose(1, 2) for x in products)
    found, _ = attention(part, query, key, value, more["attention_mask"], scaling=part.scaling)
    return part.out_proj(found.flatten(2)), None


def _bloom(part: Any, hidden: Any, residual: Any, *, attention_mask: Any, **more: Any) -> Any:
    query, key, value = part._reshape(part.query_key_value(hidden))
    slopes = sys.modules[type(part).__module__]._get_alibi_slopes(part.num_heads, hidden.device)
    scale = part.inv_norm_factor
    found, _ = attention(part, query, key, value, attention_mask, scaling=scale, slopes=slopes)
    return part.dense(found.flatten(2)) + residual, None


def _mpt(part: Any, hidden: Any, position_bias: Any, *, attention_mask: Any, **more: Any) -> Any:
    mixed = part.Wqkv(hidden)
    if part.clip_qkv:
        mixed = mixed.clamp(min=-part.clip_qkv, max=part.clip_qkv)
    heads = (x.unflatten(2, (part.n_heads, -1)).transpose(1, 2) for x in mixed.chunk(3, dim=2))
    query, key, value = heads
    slopes = (position_bias[:, 0, -1] - position_bias[:, 0, -2]).float()
    scale = part.softmax_scale
    found, _ = attention(part, query, key, value, attention_mask, scaling=scale, slopes=slopes)
    return part.out_proj(found.flatten(2)), None


def _falcon(
    part: Any,
    hidden: Any,
    *,
    alibi: Any,
    attention_mask: Any,
    position_embeddings: Any = None,
    **more: Any,
) -> Any:
    if alibi is not None:
        raise LoadError("Falcon's slopes, which it rounds to bfloat16, are not supported")
    rotate = sys.modules[type(part).__module__].apply_rotary_pos_emb
    heads = [x.transpose(1, 2) for x in part._split_heads(part.query_key_value(hidden))]
    query, key = rotate(*heads[:2], *position_embeddings)
    found, _ = attention(part, query, key, heads[2], attention_mask)
    return part.dense(found.flatten(2)), None


_METHODS: dict[str, Forward] = {
    "GPTNeoSelfAttention": _gpt_neo,
    "GPTNeoXJapaneseAttention": _gpt_neox_japanese,
    "OpenAIGPTAttention": _openai,
}
_FORWARDS: dict[str, Forward] = {
    "BloomAttention": _bloom,
    "FalconAttention": _falcon,
    "MptAttention": _mpt,
    "XGLMAttention": _xglm,
}
