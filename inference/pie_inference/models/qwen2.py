"""Qwen 2 and 2.5 (Yang et al. 2024): biases of queries, keys and values."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.spec import Config, DecoderSpec, decoder_spec, layer_windows


def qwen2(config: Config) -> DecoderSpec:
    """Biases always; windows in the upper layers, if the configuration turns them on."""
    spec = decoder_spec(
        config,
        "Qwen2ForCausalLM",
        activation=Fields(config).text("hidden_act", "silu"),
        windows=qwen_windows(config),
    )
    return replace(spec, qkv_bias=True)


def qwen_windows(config: Config) -> list[int | None]:
    """Windows a layer: from layer `max_window_layers` on, if `use_sliding_window` is set."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    if not fields.flag("use_sliding_window", False):
        return [None] * layers
    first = fields.count("max_window_layers", 28) if fields.has("max_window_layers") else 28
    window = fields.optional_count("sliding_window", 4096)
    return layer_windows(config, window, [i >= first for i in range(layers)])
