"""Qwen 1.5 and 2 with a mixture of experts (Yang et al. 2024), and a block for every token."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.router import Routing
from pie_inference.models.qwen3_moe import expert_layers
from pie_inference.models.spec import (
    Config,
    DecoderSpec,
    ExpertsSpec,
    MlpSpec,
    decoder_spec,
    layer_windows,
    window_in_use,
)


def qwen2_moe(config: Config) -> DecoderSpec:
    """Qwen 2's attention; windows in every other of the lower layers, if they are turned on."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    window = window_in_use(fields, 4096)
    below = fields.count("max_window_layers", 28)
    experts = ExpertsSpec(
        experts=fields.count("num_experts", 60),
        inner=fields.count("moe_intermediate_size", 1408),
        routing=Routing(
            fields.count("num_experts_per_tok", 4),
            fields.flag("norm_topk_prob", False),
        ),
        shared=MlpSpec(
            fields.count("shared_expert_intermediate_size", 5632),
            False,
            *(f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")),
        ),
    )
    dense = MlpSpec(fields.count("intermediate_size", 5632))
    spec = decoder_spec(
        config,
        "Qwen2MoeForCausalLM",
        activation=fields.text("hidden_act", "silu"),
        windows=layer_windows(config, window, [i < below and i % 2 == 0 for i in range(layers)]),
        feed_forward=expert_layers(fields, layers, dense, experts),
    )
    return replace(spec, qkv_bias=fields.flag("qkv_bias", True))
