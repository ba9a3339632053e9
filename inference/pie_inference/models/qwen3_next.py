"""Qwen 3 Next (Qwen 2025): three layers in four have a state, the others attention with a gate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.layers.router import Routing
from pie_inference.models.qwen3_moe import expert_layers
from pie_inference.models.spec import (
    Config,
    DecoderSpec,
    DeltaSpec,
    ExpertsSpec,
    MlpSpec,
    decoder_spec,
    with_states,
)


def qwen3_next(config: Config) -> DecoderSpec:
    """Experts as in Qwen 2 MoE; a quarter of each head turns."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    experts = ExpertsSpec(
        experts=fields.count("num_experts", 512),
        inner=fields.count("moe_intermediate_size", 512),
        routing=Routing(
            fields.count("num_experts_per_tok", 10), fields.flag("norm_topk_prob", True)
        ),
        shared=MlpSpec(
            fields.count("shared_expert_intermediate_size", 512),
            False,
            *(f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")),
        ),
    )
    dense = MlpSpec(fields.count("intermediate_size", 5632))
    spec = decoder_spec(
        config,
        "Qwen3NextForCausalLM",
        head_dim=256,
        partial=0.25,
        activation=fields.text("hidden_act", "silu"),
        feed_forward=expert_layers(fields, layers, dense, experts),
    )
    return as_hybrid(spec, fields, joined=True)


def as_hybrid(spec: DecoderSpec, fields: Fields, *, joined: bool) -> DecoderSpec:
    """A decoder with delta nets in `linear_attention` layers, and gates in the others."""
    layers = len(spec.feed_forward)
    types = fields.items("layer_types")
    interval = fields.count("full_attention_interval", 4)
    if types is None:
        recurrent = [(i + 1) % interval != 0 for i in range(layers)]
    elif len(types) != layers or set(types) - {"linear_attention", "full_attention"}:
        raise LoadError(
            f"config.json: 'layer_types' is not {layers} times 'linear_attention' or"
            f" 'full_attention': {types}"
        )
    else:
        recurrent = [kind == "linear_attention" for kind in types]
    delta = DeltaSpec(
        layers=sum(recurrent),
        key_heads=fields.count("linear_num_key_heads", 16),
        value_heads=fields.count("linear_num_value_heads", 32),
        key_dim=fields.count("linear_key_head_dim", 128),
        value_dim=fields.count("linear_value_head_dim", 128),
        kernel=fields.count("linear_conv_kernel_dim", 4),
        joined=joined,
    )
    biased = fields.flag("attention_bias", False)
    spec = replace(
        spec,
        norm_offset=1.0,
        query_key_norm=True,
        output_gate=True,
        qkv_bias=biased,
        output_bias=biased,
    )
    return with_states(spec, delta, recurrent)


def qwen3_next_rename(_: Config) -> Callable[[str], str | None]:
    """Names without those of the module that predicts several tokens at once."""
    return lambda name: None if name.startswith("mtp.") else name
