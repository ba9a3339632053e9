"""OLMo 2 (Walsh et al. 2024): norms after the blocks only, and of all queries and keys together."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.spec import BOTH_SIDES, Config, DecoderSpec, decoder_spec


def olmo2(config: Config) -> DecoderSpec:
    """Nothing is normalized before a block."""
    fields = Fields(config)
    spec = decoder_spec(config, "Olmo2ForCausalLM", activation=fields.text("hidden_act", "silu"))
    biased = fields.flag("attention_bias", False)
    return replace(
        spec,
        norms=BOTH_SIDES._replace(before_attention=None, before_mlp=None),
        query_key_norm=True,
        whole_norm=True,
        epsilon=fields.number("rms_norm_eps", 1e-5),
        qkv_bias=biased,
        output_bias=biased,
    )
