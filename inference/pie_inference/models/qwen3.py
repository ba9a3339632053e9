"""Qwen 3 (Yang et al. 2025): queries and keys are normalized, a head each."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.qwen2 import qwen_windows
from pie_inference.models.spec import Config, DecoderSpec, decoder_spec


def qwen3(config: Config) -> DecoderSpec:
    """Norms of queries and keys in the place of Qwen 2's biases; heads of 128 by default."""
    fields = Fields(config)
    spec = decoder_spec(
        config,
        "Qwen3ForCausalLM",
        activation=fields.text("hidden_act", "silu"),
        head_dim=128,
        windows=qwen_windows(config),
    )
    biased = fields.flag("attention_bias", False)
    return replace(spec, query_key_norm=True, qkv_bias=biased, output_bias=biased)
