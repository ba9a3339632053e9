"""Gemma 1 (Mesnard et al. 2024), 2 (Riviere et al. 2024), and 3 (Kamath et al. 2025), text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.layers.rope_scaling import rope_spec
from pie_inference.models.spec import (
    BOTH_SIDES,
    Config,
    DecoderSpec,
    NormNames,
    decoder_spec,
    layer_windows,
)

FULL, SLIDING = 0, 1  # indices of Gemma 3's ropes


def gemma(config: Config) -> DecoderSpec:
    """Gemma 2 without caps, windows, and norms after the blocks."""
    return _gemma(config, norms=NormNames())


def gemma2(config: Config) -> DecoderSpec:
    """Capped scores and logits; every other layer slides, the first one does."""
    fields = Fields(config)
    return _gemma(
        config,
        windows=_windows(config, every=2, full=1),
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        softcap=fields.optional_number("attn_logit_softcapping", 50.0),
        logit_softcap=fields.optional_number("final_logit_softcapping", 30.0),
    )


def gemma3(config: Config) -> DecoderSpec:
    """Norms of queries and keys in the place of capped scores; five sliding layers to a full one,
    which has its own rope.
    """
    fields = Fields(config)
    pattern = fields.count("sliding_window_pattern", 6)
    windows = _windows(config, every=pattern, full=pattern - 1)
    full, sliding = _rope_parameters(config)
    spec = _gemma(
        {**config, "rope_parameters": full, "rope_scaling": None},
        rope_base=1_000_000.0,
        windows=windows,
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        # The configuration has `attn_logit_softcapping`, but no Gemma 3 is computed with it.
        logit_softcap=fields.optional_number("final_logit_softcapping", None),
        query_key_norm=True,
        layer_rope=tuple(FULL if window is None else SLIDING for window in windows),
    )
    local = rope_spec(
        sliding,
        head_dim=spec.shape.head_dim,
        base=fields.number("rope_local_base_freq", 10_000.0),
        trained=spec.shape.max_position,
    )
    return replace(spec, ropes=(spec.ropes[0], local))


def _gemma(config: Config, **more: Any) -> DecoderSpec:
    """The traits of all Gemmas: weights of norms are less one, embeddings scaled, GeGLU."""
    fields = Fields(config)
    if fields.flag("use_bidirectional_attention", False):
        raise LoadError("config.json: use_bidirectional_attention is not supported: an encoder")
    common: dict[str, Any] = {
        "head_dim": 256,
        "tied": True,
        # `hidden_activation` overrides what Gemma 1 wrote by mistake.
        "activation": fields.text("hidden_activation", "gelu_pytorch_tanh"),
        "biased": False,
        "norm_offset": 1.0,
        "norms": BOTH_SIDES,
        "embedding_scale": fields.count("hidden_size") ** 0.5,
    }
    return decoder_spec(config, **common | more)


def _windows(config: Config, *, every: int, full: int) -> list[int | None]:
    """Windows in all layers but one of so many, if `layer_types` does not say in which."""
    fields = Fields(config)
    window = fields.optional_count("sliding_window", 4096)
    layers = range(fields.count("num_hidden_layers"))
    return layer_windows(config, window, [i % every != full for i in layers])


def _rope_parameters(config: Config) -> tuple[dict[str, object], dict[str, object]]:
    """Rope parameters of full and of sliding layers: transformers 5 has both, before full ones'."""
    fields = Fields(config)
    both = Fields(fields.table("rope_parameters"), "config.json: rope_parameters")
    full = both.table("full_attention") or fields.table("rope_scaling")
    return full, both.table("sliding_attention")
