"""GLM 4 (GLM team 2024, 2025) and GLM 4.5 to 4.7 (Zhipu AI 2025): half of each head turns."""

from __future__ import annotations

from typing import Any

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.deepseek_v3 import dense_then, sigmoid_experts
from pie_inference.models.spec import Config, DecoderSpec, MlpSpec, NormNames, decoder_spec

# What a GLM 4.5 may leave out where DeepSeek V3's defaults differ.
_EXPERTS = {
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
}


def glm(config: Config, **more: Any) -> DecoderSpec:
    """The first GLM 4: planes of neighbouring dimensions turn; gate and up are stored as one."""
    fields = Fields(config)
    return decoder_spec(
        config,
        head_dim=128,
        partial=0.5,
        epsilon=1.5625e-07,
        feed_forward=MlpSpec(fields.count("intermediate_size"), False, "mlp.gate_up_proj", None),
        interleaved=True,
        qkv_bias=fields.flag("attention_bias", True),
        **more,
    )


def glm4(config: Config) -> DecoderSpec:
    """GLM 4-0414: norms on both sides."""
    norms = NormNames(
        "input_layernorm",
        "post_self_attn_layernorm",
        "post_attention_layernorm",
        "post_mlp_layernorm",
    )
    return glm(config, norms=norms)


def glm4_moe(config: Config) -> DecoderSpec:
    """Experts as DeepSeek V3 routes them; the larger models have norms of queries and keys."""
    fields = Fields({**_EXPERTS, **config})
    return decoder_spec(
        config,
        partial=0.5,
        epsilon=1e-5,
        feed_forward=dense_then(sigmoid_experts(fields), fields),
        query_key_norm=fields.flag("use_qk_norm", False),
        qkv_bias=fields.flag("attention_bias", False),
    )
