"""Gemma 2 (Riviere et al. 2024): capped scores and logits, alternating windows, norms on both
sides.
"""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.models.spec import (
    BOTH_SIDES,
    Config,
    DecoderSpec,
    decoder_spec,
    layer_windows,
)


def gemma2(config: Config) -> DecoderSpec:
    """Every other layer slides, the first one does."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    spec = decoder_spec(
        config,
        "Gemma2ForCausalLM",
        head_dim=256,
        tied=True,
        activation=gemma_activation(config),
        windows=layer_windows(
            config,
            fields.optional_count("sliding_window", 4096),
            [i % 2 == 0 for i in range(layers)],
        ),
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        softcap=fields.optional_number("attn_logit_softcapping", 50.0),
    )
    return replace(
        as_gemma(config, spec),
        logit_softcap=fields.optional_number("final_logit_softcapping", 30.0),
    )


def gemma_activation(config: Config) -> str:
    """Name of the activation; `hidden_activation` overrides what Gemma 1 wrote by mistake."""
    return Fields(config).text("hidden_activation", "gelu_pytorch_tanh")


def as_gemma(config: Config, spec: DecoderSpec) -> DecoderSpec:
    """What all Gemmas have: weights of norms are less one, embeddings scaled, norms on both
    sides.
    """
    fields = Fields(config)
    if fields.flag("use_bidirectional_attention", False):
        raise LoadError("config.json: use_bidirectional_attention is not supported: an encoder")
    biased = fields.flag("attention_bias", False)
    return replace(
        spec,
        norm_offset=1.0,
        norms=BOTH_SIDES,
        embedding_scale=spec.shape.hidden**0.5,
        qkv_bias=biased,
        output_bias=biased,
    )
