"""Qwen 3.5 (Qwen 2026), the dense models: Qwen 3 Next's layers; of images, nothing is served."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.qwen3_next import as_hybrid
from pie_inference.models.spec import Config, DecoderSpec, decoder_spec

# What a `text_config` may leave out, for it is the default.
_DEFAULTS: dict[str, object] = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
}


def qwen3_5_text(config: Config) -> Config:
    """The configuration of the language model: a part of the whole, or all there is."""
    fields = Fields(config)
    if not fields.has("text_config"):
        return config
    tied = {"tie_word_embeddings": fields.flag("tie_word_embeddings", False)}
    return {**_DEFAULTS, **tied, **fields.table("text_config")}


def qwen3_5(config: Config) -> DecoderSpec:
    """A quarter of each head turns; a text token has one position in all three directions."""
    whole = config.get("text_config") is not None
    text = qwen3_5_text(config)
    fields = Fields(text)
    spec = decoder_spec(
        text,
        "Qwen3_5ForCausalLM",
        head_dim=256,
        partial=0.25,
        activation=fields.text("hidden_act", "silu"),
    )
    if whole:
        shape = replace(spec.shape, architecture="Qwen3_5ForConditionalGeneration")
        spec = replace(spec, shape=shape)
    return as_hybrid(spec, fields, joined=False)


def qwen3_5_rename(name: str) -> str | None:
    """What a stored tensor is called here; None for images, and what predicts several tokens."""
    if name.startswith(("mtp.", "model.visual.")):
        return None
    return name.replace("model.language_model.", "model.", 1)
