"""Phi 3 and 4 (Abdin et al. 2024): Llama, its products stored together, and ropes for length."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.spec import (
    Config,
    DecoderSpec,
    MlpSpec,
    decoder_spec,
    layer_windows,
)


def phi3(config: Config) -> DecoderSpec:
    """Windows over all layers, if there are any; a part of each head turns (Phi 4 mini)."""
    fields = Fields(config)
    kind = dict(fields.table("rope_parameters") or fields.table("rope_scaling"))
    if kind.get("type") in ("su", "longrope") or kind.get("rope_type") == "su":
        kind["rope_type"] = "longrope"  # its first name
    block = MlpSpec(fields.count("intermediate_size"), False, "mlp.gate_up_proj", None)
    spec = decoder_spec(
        {**config, "rope_parameters": kind},
        "Phi3ForCausalLM",
        partial=1.0,
        activation=fields.text("hidden_act", "silu"),
        windows=layer_windows(config, fields.optional_count("sliding_window", None)),
        feed_forward=[block] * fields.count("num_hidden_layers"),
    )
    return replace(spec, attention_names=("qkv_proj",))
