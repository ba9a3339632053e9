"""SmolLM 3 (Bakouch et al. 2025): Llama, some of whose layers do not see positions (NoPE)."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.llama import llama
from pie_inference.models.spec import Config, DecoderSpec, layer_windows, window_in_use


def smollm3(config: Config) -> DecoderSpec:
    """Every fourth layer does not turn its heads, unless `no_rope_layers` says which do."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    interval = fields.count("no_rope_layer_interval", 4)
    turns = fields.items("no_rope_layers") or [(i + 1) % interval for i in range(layers)]
    window = window_in_use(fields, None)
    tied = {**config, "tie_word_embeddings": fields.flag("tie_word_embeddings", True)}
    spec = llama(tied)
    windows = layer_windows(config, window, [not turn for turn in turns])
    options = zip(spec.shape.attention, windows, strict=True)
    shape = replace(
        spec.shape,
        architecture="SmolLM3ForCausalLM",
        attention=tuple(replace(option, window=window) for option, window in options),
    )
    return replace(spec, shape=shape, layer_rope=tuple(0 if turn else None for turn in turns))
