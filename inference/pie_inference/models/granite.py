"""Granite (IBM 2024): Llama with factors of embeddings, scores, residuals and logits."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.llama import llama
from pie_inference.models.spec import Config, DecoderSpec


def granite(config: Config) -> DecoderSpec:
    """The factors are 1 where the configuration does not name them."""
    fields = Fields(config)
    spec = llama(config)
    scale = fields.number("attention_multiplier", 1.0)
    shape = replace(
        spec.shape,
        architecture="GraniteForCausalLM",
        attention=tuple(replace(option, scale=scale) for option in spec.shape.attention),
    )
    return replace(
        spec,
        shape=shape,
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0),
    )
