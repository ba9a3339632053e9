"""GLM 4 (GLM team 2024, 2025): half of each head turns, by neighbours; gate and up are one."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.spec import Config, DecoderSpec, MlpSpec, NormNames, decoder_spec


def glm(config: Config) -> DecoderSpec:
    """The first GLM 4, in its layout for transformers."""
    return _glm(config, "GlmForCausalLM")


def glm4(config: Config) -> DecoderSpec:
    """GLM 4-0414: norms on both sides."""
    spec = _glm(config, "Glm4ForCausalLM")
    return replace(
        spec,
        norms=NormNames(
            "input_layernorm",
            "post_self_attn_layernorm",
            "post_attention_layernorm",
            "post_mlp_layernorm",
        ),
    )


def _glm(config: Config, architecture: str) -> DecoderSpec:
    fields = Fields(config)
    block = MlpSpec(fields.count("intermediate_size"), False, "mlp.gate_up_proj", None)
    spec = decoder_spec(
        config,
        architecture,
        head_dim=128,
        partial=0.5,
        activation=fields.text("hidden_act", "silu"),
        feed_forward=[block] * fields.count("num_hidden_layers"),
    )
    return replace(
        spec,
        interleaved=True,
        qkv_bias=fields.flag("attention_bias", False),
        epsilon=fields.number("rms_norm_eps", 1.5625e-07),
    )
