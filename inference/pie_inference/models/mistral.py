"""Mistral (Jiang et al. 2023): a sliding window over every layer."""

from __future__ import annotations

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.spec import Config, DecoderSpec, decoder_spec, layer_windows


def mistral(config: Config) -> DecoderSpec:
    """All layers slide, unless `sliding_window` is null."""
    fields = Fields(config)
    return decoder_spec(
        config,
        "MistralForCausalLM",
        activation=fields.text("hidden_act", "silu"),
        windows=layer_windows(config, fields.optional_count("sliding_window", 4096)),
    )
