"""Gemma 3 (Kamath et al. 2025), text: five sliding layers to a full one, which has its own rope."""

from __future__ import annotations

from dataclasses import replace

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.rope_scaling import rope_spec
from pie_inference.models.gemma2 import as_gemma, gemma_activation
from pie_inference.models.spec import Config, DecoderSpec, decoder_spec, layer_windows

FULL, SLIDING = 0, 1  # indices of the ropes
_TEXT = "language_model."


def gemma3(config: Config) -> DecoderSpec:
    """Norms of queries and keys in the place of Gemma 2's capped scores."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    pattern = fields.count("sliding_window_pattern", 6)
    windows = layer_windows(
        config,
        fields.optional_count("sliding_window", 4096),
        [(i + 1) % pattern != 0 for i in range(layers)],
    )
    full, sliding = _rope_parameters(config)
    spec = decoder_spec(
        {**config, "rope_parameters": full, "rope_scaling": None},
        "Gemma3ForCausalLM",
        head_dim=256,
        tied=True,
        rope_base=1_000_000.0,
        activation=gemma_activation(config),
        windows=windows,
        scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
        # The configuration has `attn_logit_softcapping`, but no Gemma 3 is computed with it.
    )
    local = rope_spec(
        sliding,
        head_dim=spec.shape.head_dim,
        base=fields.number("rope_local_base_freq", 10_000.0),
        trained=spec.shape.max_position,
    )
    return replace(
        as_gemma(config, spec),
        query_key_norm=True,
        ropes=(spec.ropes[0], local),
        layer_rope=tuple(FULL if window is None else SLIDING for window in windows),
        logit_softcap=fields.optional_number("final_logit_softcapping", None),
    )


# What the larger models' `text_config` leaves out, for it is the default.
_DEFAULTS: dict[str, object] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "bos_token_id": 2,
    "eos_token_id": 1,
}


def gemma3_text(config: Config) -> Config:
    """The configuration of the language model within a Gemma 3 that reads images, too."""
    return {**_DEFAULTS, **Fields(config).table("text_config")}


def gemma3_within(config: Config) -> DecoderSpec:
    """The language model of a Gemma 3 that reads images, too: of it, only text is served."""
    spec = gemma3(gemma3_text(config))
    shape = replace(spec.shape, architecture="Gemma3ForConditionalGeneration")
    return replace(spec, shape=shape, prefix=f"{_TEXT}model.", head=f"{_TEXT}lm_head")


def gemma3_rename(name: str) -> str | None:
    """What a stored tensor is called here, or None for those of images. There were two layouts."""
    name = name.removeprefix("model.")
    if name.startswith(("vision_tower.", "multi_modal_projector.")):
        return None
    if name.startswith("lm_head."):
        return _TEXT + name
    if name.startswith(_TEXT) and not name.startswith((f"{_TEXT}model.", f"{_TEXT}lm_head.")):
        return f"{_TEXT}model.{name.removeprefix(_TEXT)}"
    return name


def _rope_parameters(config: Config) -> tuple[dict[str, object], dict[str, object]]:
    """Rope parameters of full and of sliding layers: transformers 5 has both, before full ones'."""
    fields = Fields(config)
    both = Fields(fields.table("rope_parameters"), "config.json: rope_parameters")
    full = both.table("full_attention") or fields.table("rope_scaling")
    return full, both.table("sliding_attention")
