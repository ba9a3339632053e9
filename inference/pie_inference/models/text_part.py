"""The language model within a model that reads images: one of the other families."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pie_inference.checkpoints.fields import Fields
from pie_inference.errors import LoadError
from pie_inference.models.llama import llama, mistral
from pie_inference.models.qwen import qwen2, qwen3
from pie_inference.models.spec import Config, DecoderSpec

TEXT = "language_model."
DECODERS: dict[str, Callable[[Config], DecoderSpec]] = {
    "llama": llama,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
}
# What checkpoints leave out of `text_config`, for it is the default.
_SIZES: dict[str, Any] = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_QWEN = {"intermediate_size": 22016, "vocab_size": 151936, "max_position_embeddings": 32768}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 11008, "vocab_size": 32000, **_ENDS},
    "mistral": {
        "intermediate_size": 14336,
        "vocab_size": 32000,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        **_ENDS,
    },
    "qwen2": _QWEN,
    "qwen3": _QWEN,
}


def text_config(config: Config) -> Config:
    """The configuration of the language model, as its family reads it. Raises `LoadError` if it is
    of a family that is not supported within another model.
    """
    text = Fields(config).table("text_config")
    kind = str(text.get("model_type", "llama"))
    if kind not in DECODERS:
        raise LoadError(
            f"config.json: a language model of {kind!r} within another is not supported"
            f" (supported: {', '.join(DECODERS)})"
        )
    tied = bool(config.get("tie_word_embeddings")) or bool(text.get("tie_word_embeddings"))
    own = {"model_type": kind, "tie_word_embeddings": tied}
    return {**_SIZES, **_DEFAULTS[kind], **text, **own}


def text_name(name: str) -> str:
    """The name of a tensor of a language model within another, stored in one of several
    layouts, here.
    """
    if name.startswith("lm_head."):
        return TEXT + name
    if name.startswith(TEXT) and not name.startswith((f"{TEXT}model.", f"{TEXT}lm_head.")):
        return f"{TEXT}model.{name.removeprefix(TEXT)}"
    return name


def text_spec(config: Config, prefix: str, head: str) -> DecoderSpec:
    """The language model, with the names that its tensors have within the whole."""
    text = text_config(config)
    return replace(DECODERS[text["model_type"]](text), prefix=prefix, head=head)
