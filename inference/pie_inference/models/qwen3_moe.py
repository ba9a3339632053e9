"""Qwen 3 with a mixture of experts (Yang et al. 2025), in all layers or some."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.router import Routing
from pie_inference.models.spec import (
    Config,
    DecoderSpec,
    ExpertsSpec,
    MlpSpec,
    decoder_spec,
    window_in_use,
)


def qwen3_moe(config: Config) -> DecoderSpec:
    """Qwen 3's attention; the window, if it is turned on, is every layer's."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    window = window_in_use(fields, 4096)
    spec = decoder_spec(
        config,
        "Qwen3MoeForCausalLM",
        activation=fields.text("hidden_act", "silu"),
        windows=[window] * layers,
        feed_forward=_blocks(fields, layers),
    )
    biased = fields.flag("attention_bias", False)
    return replace(spec, query_key_norm=True, qkv_bias=biased, output_bias=biased)


def _blocks(fields: Fields, layers: int) -> list[MlpSpec | ExpertsSpec]:
    dense = MlpSpec(fields.count("intermediate_size", 6144))
    sparse = ExpertsSpec(
        # Transformers 5 writes the second name.
        experts=fields.count("num_experts", fields.count("num_local_experts", 128)),
        inner=fields.count("moe_intermediate_size", 768),
        routing=Routing(
            fields.count("num_experts_per_tok", 8),
            fields.flag("norm_topk_prob", False),
        ),
    )
    return expert_layers(fields, layers, dense, sparse)


def expert_layers(
    fields: Fields, layers: int, dense: MlpSpec, sparse: ExpertsSpec
) -> list[MlpSpec | ExpertsSpec]:
    """Dense blocks in `mlp_only_layers`, experts in every `decoder_sparse_step`-th other layer."""
    step = fields.count("decoder_sparse_step", 1)
    dense_layers = fields.items("mlp_only_layers") or []
    return [dense if i in dense_layers or (i + 1) % step else sparse for i in range(layers)]
