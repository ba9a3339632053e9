"""gpt-oss (OpenAI 2025): sinks, alternating windows, and experts with biases and a clamped gate."""

from __future__ import annotations

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.experts import Routing
from pie_inference.layers.feed_forward import Clamp
from pie_inference.models.spec import (
    Config,
    DecoderSpec,
    StackedNames,
    decoder_spec,
    layer_windows,
    stacked_experts,
)


def gpt_oss(config: Config) -> DecoderSpec:
    """Every other layer slides, the first one does."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    experts = stacked_experts(
        StackedNames(
            "mlp.experts.gate_up_proj", "mlp.experts.down_proj", transposed=True, alternating=True
        ),
        "mlp.router",
        experts=fields.count("num_local_experts", 128),
        inner=fields.count("intermediate_size"),
        routing=Routing(fields.count("num_experts_per_tok", 4), normalized=True),
        bias=True,
        router_bias=True,
        clamp=Clamp(fields.number("swiglu_alpha", 1.702), fields.number("swiglu_limit", 7.0)),
    )
    window = fields.optional_count("sliding_window", 128)
    return decoder_spec(
        config,
        head_dim=64,
        rope_base=150_000.0,
        windows=layer_windows(config, window, [i % 2 == 0 for i in range(layers)]),
        sinks=True,
        feed_forward=experts,
        epsilon=1e-5,
        biased=True,
    )
