"""The language model of Qwen 3 VL (Qwen 2025): Qwen 3, of which only text is served.

A text token has one position in all three of its directions, so that its rope is Qwen 3's.
"""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.models.qwen3 import qwen3
from pie_inference.models.spec import Config, DecoderSpec

# What a `text_config` may leave out, for it is the default.
_DEFAULTS: dict[str, object] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 128_000,
    "rope_theta": 500_000.0,
}


def qwen3_vl_text(config: Config) -> Config:
    """The configuration of the language model."""
    fields = Fields(config)
    tied = {"tie_word_embeddings": fields.flag("tie_word_embeddings", False)}
    return {**_DEFAULTS, **tied, **fields.table("text_config")}


def qwen3_vl(config: Config) -> DecoderSpec:
    """With the names that its tensors have within the whole."""
    spec = qwen3(qwen3_vl_text(config))
    shape = replace(spec.shape, architecture="Qwen3VLForConditionalGeneration")
    return replace(spec, shape=shape, prefix="model.language_model.")


def qwen3_vl_rename(name: str) -> str | None:
    """A stored tensor's name, or None for those of images."""
    return None if name.startswith("model.visual.") else name
