"""Qwen 1.5 to 3.5 (Yang et al. 2024, 2025; Qwen 2025, 2026), dense and with experts.

Of models that read images, the text.
"""

from __future__ import annotations

from collections.abc import Callable

from pie_inference.checkpoints.fields import Fields
from pie_inference.layers.experts import Routing
from pie_inference.models.spec import (
    Block,
    Config,
    DecoderSpec,
    DeltaSpec,
    ExpertsSpec,
    MlpSpec,
    decoder_spec,
    layer_windows,
    layers_of_kind,
    window_in_use,
    with_states,
)

# What a `text_config` of Qwen 3.5 may leave out, for it is the default.
_DEFAULTS_3_5: dict[str, object] = {
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32_768,
}
_DEFAULTS_3_5_MOE = {
    **_DEFAULTS_3_5,
    "hidden_size": 2048,
    "num_hidden_layers": 40,
    "num_key_value_heads": 2,
}


def qwen2(config: Config) -> DecoderSpec:
    """Biases of queries, keys and values."""
    return decoder_spec(config, windows=_upper_windows(config), qkv_bias=True)


def qwen3(config: Config) -> DecoderSpec:
    """Norms of each head's query and key, in the place of Qwen 2's biases."""
    windows = _upper_windows(config)
    return decoder_spec(config, head_dim=128, windows=windows, biased=False, query_key_norm=True)


def qwen2_moe(config: Config) -> DecoderSpec:
    """Qwen 2's attention; windows in every other of the lower layers, if they are turned on."""
    fields = Fields(config)
    layers, below = fields.count("num_hidden_layers"), fields.count("max_window_layers", 28)
    sliding = [i < below and i % 2 == 0 for i in range(layers)]
    return decoder_spec(
        config,
        windows=layer_windows(config, window_in_use(fields, 4096), sliding),
        feed_forward=_blocks(fields, experts=60, inner=1408, chosen=4, dense=5632, shared=5632),
        qkv_bias=fields.flag("qkv_bias", True),
    )


def qwen3_moe(config: Config) -> DecoderSpec:
    """Qwen 3's attention; the window, if it is turned on, is every layer's."""
    fields = Fields(config)
    return decoder_spec(
        config,
        windows=[window_in_use(fields, 4096)] * fields.count("num_hidden_layers"),
        feed_forward=_blocks(fields, experts=128, inner=768, chosen=8, dense=6144),
        biased=False,
        query_key_norm=True,
    )


def qwen3_next(config: Config) -> DecoderSpec:
    """Three layers in four have a state, the others attention with a gate."""
    blocks = _blocks(
        Fields(config),
        experts=512,
        inner=512,
        chosen=10,
        dense=5632,
        shared=512,
        normalized=True,
    )
    return _hybrid(config, blocks, joined=True)


def qwen3_next_rename(_: Config) -> Callable[[str], str | None]:
    """Names without those of the module that predicts several tokens at once."""
    return lambda name: None if name.startswith("mtp.") else name


def qwen3_5(config: Config) -> DecoderSpec:
    """Qwen 3 Next's layers, dense; a text token has one position in all three directions."""
    return _hybrid(qwen3_5_text(config), None, joined=False)


def qwen3_5_moe(config: Config) -> DecoderSpec:
    """Qwen 3.5 with experts."""
    text = within(config, _DEFAULTS_3_5_MOE) if "text_config" in config else config
    sizes = {"experts": 256, "inner": 512, "chosen": 8, "dense": 512, "shared": 512}
    return _hybrid(text, _blocks(Fields(text), **sizes, normalized=True), joined=False)


def qwen3_5_text(config: Config) -> Config:
    """The configuration of the language model: a part of the whole, or all there is."""
    return within(config, _DEFAULTS_3_5) if "text_config" in config else config


def within(config: Config, defaults: Config) -> Config:
    """The configuration of a language model that is a part of the whole, which says if its head is
    its embedding; `defaults` are of what it may leave out.
    """
    fields = Fields(config)
    tied = {"tie_word_embeddings": fields.flag("tie_word_embeddings", False)}
    return {**defaults, **tied, **fields.table("text_config")}


def qwen3_5_rename(name: str) -> str | None:
    """The name here of a stored tensor; None for images, and what predicts several tokens."""
    if name.startswith(("mtp.", "model.visual.")):
        return None
    return name.replace("model.language_model.", "model.", 1)


def _upper_windows(config: Config) -> list[int | None]:
    """Windows from layer `max_window_layers` on, if `use_sliding_window` is set."""
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    if (window := window_in_use(fields, 4096)) is None:
        return [None] * layers
    first = fields.count("max_window_layers", 28)
    return layer_windows(config, window, [i >= first for i in range(layers)])


def _blocks(
    fields: Fields,
    *,
    experts: int,
    inner: int,
    chosen: int,
    dense: int,
    shared: int | None = None,
    normalized: bool = False,
) -> list[Block]:
    """Dense blocks in `mlp_only_layers`, experts in every `decoder_sparse_step`-th other layer.

    The arguments are what config.json may leave out; `shared` is None without a block that every
    token goes through.
    """
    shared_block = None
    if shared is not None:
        names = (f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down"))
        size = fields.count("shared_expert_intermediate_size", shared)
        shared_block = MlpSpec(size, False, *names)
    sparse = ExpertsSpec(
        # Transformers 5 writes the second name.
        experts=fields.count("num_experts", fields.count("num_local_experts", experts)),
        inner=fields.count("moe_intermediate_size", inner),
        routing=Routing(
            fields.count("num_experts_per_tok", chosen), fields.flag("norm_topk_prob", normalized)
        ),
        shared=shared_block,
    )
    plain = MlpSpec(fields.count("intermediate_size", dense))
    step = fields.count("decoder_sparse_step", 1)
    dense_layers = fields.items("mlp_only_layers") or []
    return [
        plain if i in dense_layers or (i + 1) % step else sparse
        for i in range(fields.count("num_hidden_layers"))
    ]


def _hybrid(config: Config, blocks: list[Block] | None, *, joined: bool) -> DecoderSpec:
    """Delta nets in `linear_attention` layers; gates, and a quarter of each head that turns, in
    the others.
    """
    fields = Fields(config)
    layers = fields.count("num_hidden_layers")
    interval = fields.count("full_attention_interval", 4)
    recurrent = layers_of_kind(fields, "linear_attention")
    if recurrent is None:
        recurrent = [(i + 1) % interval != 0 for i in range(layers)]
    delta = DeltaSpec(
        layers=sum(recurrent),
        key_heads=fields.count("linear_num_key_heads", 16),
        value_heads=fields.count("linear_num_value_heads", 32),
        key_dim=fields.count("linear_key_head_dim", 128),
        value_dim=fields.count("linear_value_head_dim", 128),
        kernel=fields.count("linear_conv_kernel_dim", 4),
        joined=joined,
    )
    spec = decoder_spec(
        config,
        head_dim=256,
        partial=0.25,
        feed_forward=blocks,
        biased=False,
        norm_offset=1.0,
        query_key_norm=True,
        output_gate=True,
    )
    return with_states(spec, delta, recurrent)
