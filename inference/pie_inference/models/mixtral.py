"""Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every layer."""

from __future__ import annotations

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.router import Routing
from pie_inference.models.spec import (
    Config,
    DecoderSpec,
    ExpertsSpec,
    decoder_spec,
    layer_windows,
)


def mixtral(config: Config) -> DecoderSpec:
    """The weights of the chosen experts add up to one."""
    fields = Fields(config)
    block = "block_sparse_moe"
    experts = ExpertsSpec(
        experts=fields.count("num_local_experts", 8),
        inner=fields.count("intermediate_size"),
        routing=Routing(
            fields.count("num_experts_per_tok", 2),
            True,
        ),
        router=f"{block}.gate",
        gate=f"{block}.experts.{{}}.w1",
        up=f"{block}.experts.{{}}.w3",
        down=f"{block}.experts.{{}}.w2",
    )
    return decoder_spec(
        config,
        "MixtralForCausalLM",
        rope_base=1_000_000.0,
        activation=fields.text("hidden_act", "silu"),
        windows=layer_windows(config, fields.optional_count("sliding_window", None)),
        feed_forward=[experts] * fields.count("num_hidden_layers"),
    )
