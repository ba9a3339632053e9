"""Llama (Touvron et al. 2023; Grattafiori et al. 2024) and its kin: plain decoders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.experts import Routing
from pie_inference.models.spec import (
    Config,
    DecoderSpec,
    ExpertsSpec,
    MlpSpec,
    StackedNames,
    decoder_spec,
    layer_windows,
    stacked_experts,
    window_in_use,
)


def llama(config: Config, **more: Any) -> DecoderSpec:
    """The plain decoder, with biases if configured; `more` as of `decoder_spec`."""
    fields = Fields(config)
    block = MlpSpec(fields.count("intermediate_size"), fields.flag("mlp_bias", False))
    return decoder_spec(config, feed_forward=block, biased=False, **more)


def mistral(config: Config) -> DecoderSpec:
    """Mistral (Jiang et al. 2023): all layers slide, unless `sliding_window` is null."""
    window = Fields(config).optional_count("sliding_window", 4096)
    return decoder_spec(config, windows=layer_windows(config, window))


def mixtral(config: Config) -> DecoderSpec:
    """Mixtral (Jiang et al. 2024): Mistral with a mixture of experts in every layer."""
    fields = Fields(config)
    block = "block_sparse_moe"
    experts = ExpertsSpec(
        experts=fields.count("num_local_experts", 8),
        inner=fields.count("intermediate_size"),
        routing=Routing(fields.count("num_experts_per_tok", 2), normalized=True),
        router=f"{block}.gate",
        gate=f"{block}.experts.{{}}.w1",
        up=f"{block}.experts.{{}}.w3",
        down=f"{block}.experts.{{}}.w2",
    )
    windows = layer_windows(config, fields.optional_count("sliding_window", None))
    return decoder_spec(
        config, rope_base=1_000_000.0, epsilon=1e-5, windows=windows, feed_forward=experts
    )


def phi3(config: Config) -> DecoderSpec:
    """Phi 3 and 4 (Abdin et al. 2024): products stored together, ropes for length, perhaps windows
    over all layers; of Phi 4 mini's heads a part turns.
    """
    fields = Fields(config)
    kind = dict(fields.table("rope_parameters") or fields.table("rope_scaling"))
    if kind.get("type") in ("su", "longrope") or kind.get("rope_type") == "su":
        kind["rope_type"] = "longrope"  # its first name
    return decoder_spec(
        {**config, "rope_parameters": kind},
        partial=1.0,
        epsilon=1e-5,
        windows=layer_windows(config, fields.optional_count("sliding_window", None)),
        feed_forward=MlpSpec(fields.count("intermediate_size"), False, "mlp.gate_up_proj", None),
        attention_names=("qkv_proj",),
    )


def smollm3(config: Config) -> DecoderSpec:
    """SmolLM 3 (Bakouch et al. 2025): every fourth layer does not see positions (NoPE), unless
    `no_rope_layers` says which do.
    """
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    interval = fields.count("no_rope_layer_interval", 4)
    turns = fields.items("no_rope_layers") or [(i + 1) % interval for i in range(layers)]
    windows = layer_windows(config, window_in_use(fields, None), [not turn for turn in turns])
    layer_rope = tuple(0 if turn else None for turn in turns)
    return llama(config, tied=True, windows=windows, layer_rope=layer_rope)


def granite(config: Config) -> DecoderSpec:
    """Granite (IBM 2024): factors, 1 by default, of embeddings, scores, residuals and logits."""
    fields = Fields(config)
    return llama(
        config,
        scale=fields.number("attention_multiplier", 1.0),
        embedding_scale=fields.number("embedding_multiplier", 1.0),
        residual_scale=fields.number("residual_multiplier", 1.0),
        logit_scale=1.0 / fields.number("logits_scaling", 1.0),
    )


def granite_moe(config: Config) -> DecoderSpec:
    """Granite with a mixture of experts (IBM 2024), in every layer."""
    fields = Fields(config)
    block = "block_sparse_moe"
    experts = stacked_experts(
        StackedNames(f"{block}.input_linear.weight", f"{block}.output_linear.weight"),
        f"{block}.router.layer",
        experts=fields.count("num_local_experts", 8),
        inner=fields.count("intermediate_size"),
        routing=Routing(fields.count("num_experts_per_tok", 2), normalized=True),
    )
    spec = granite(config)
    return replace(spec, feed_forward=(experts,) * spec.shape.layers)
