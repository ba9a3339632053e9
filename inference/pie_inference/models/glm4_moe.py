"""GLM 4.5 to 4.7 (Zhipu AI 2025): half of each head turns, experts as DeepSeek V3 routes them."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.deepseek_v3 import dense_then, sigmoid_experts
from pie_inference.models.spec import Config, DecoderSpec, decoder_spec

_DEFAULTS = {
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "first_k_dense_replace": 1,
}


def glm4_moe(config: Config) -> DecoderSpec:
    """The first layers are dense; the larger models have norms of queries and keys."""
    fields = Fields({**_DEFAULTS, **config})
    spec = decoder_spec(
        config,
        "Glm4MoeForCausalLM",
        partial=0.5,
        activation=fields.text("hidden_act", "silu"),
        feed_forward=dense_then(sigmoid_experts(fields), fields),
    )
    return replace(
        spec,
        query_key_norm=fields.flag("use_qk_norm", False),
        qkv_bias=fields.flag("attention_bias", False),
        epsilon=fields.number("rms_norm_eps", 1e-5),
    )
