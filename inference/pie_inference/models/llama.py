"""Llama (Touvron et al. 2023; Grattafiori et al. 2024), and checkpoints of the same
architecture.
"""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.spec import Config, DecoderSpec, MlpSpec, decoder_spec


def llama(config: Config) -> DecoderSpec:
    """The plain decoder, with biases if the configuration asks for them."""
    fields = Fields(config)
    inner, biased = fields.count("intermediate_size"), fields.flag("mlp_bias", False)
    spec = decoder_spec(
        config,
        "LlamaForCausalLM",
        activation=fields.text("hidden_act", "silu"),
        feed_forward=[MlpSpec(inner, biased)] * fields.count("num_hidden_layers"),
    )
    attention_bias = fields.flag("attention_bias", False)
    return replace(spec, qkv_bias=attention_bias, output_bias=attention_bias)
