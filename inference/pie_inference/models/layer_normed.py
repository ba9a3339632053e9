"""Decoders with layer norms, of which some compute attention and feed-forward side by side."""

from __future__ import annotations

import re
from typing import Any

import torch

from pie_inference.checkpoints.fields import Fields
from pie_inference.checkpoints.sources import Made, Source, Sources
from pie_inference.models.spec import (
    Config,
    DecoderSpec,
    MlpSpec,
    NormNames,
    decoder_spec,
    layer_windows,
)

_PARALLEL = NormNames(before_mlp=None)
_HEAD_NORM = re.compile(r"(.*\.self_attn\.[qk]_norm)\.norms\.(\d+)\.weight")


def phi(config: Config) -> DecoderSpec:
    """Phi 1, 1.5 and 2 (Gunasekar et al. 2023): side by side, no gate, biases everywhere."""
    fields = Fields(config)
    block = MlpSpec(
        fields.count("intermediate_size"), True, "mlp.fc1", None, "mlp.fc2", gated=False
    )
    return _layer_normed(
        config,
        partial=0.5,
        activation=fields.text("hidden_act", "gelu_new"),
        feed_forward=block,
        qkv_bias=True,
        output_bias=True,
        query_key_norm=fields.flag("qk_layernorm", False),
        parallel=True,
        norms=_PARALLEL,
        head_bias=True,
    )


def phi_rename(name: str) -> str:
    """The name here of a stored tensor."""
    for stored, ours in (
        (".dense.", ".o_proj."),
        ("final_layernorm", "norm"),
        ("_layernorm.", "_norm."),
    ):
        if "input_layernorm" not in name:
            name = name.replace(stored, ours)
    return name


def starcoder2(config: Config) -> DecoderSpec:
    """StarCoder 2 (Lozhkov et al. 2024): no gate, biases everywhere, perhaps windows."""
    fields = Fields(config)
    bias, inner = fields.flag("use_bias", True), fields.count("intermediate_size")
    return _layer_normed(
        config,
        epsilon=fields.number("norm_epsilon", 1e-5),
        tied=True,
        activation=fields.text("hidden_act", "gelu_pytorch_tanh"),
        windows=layer_windows(config, fields.optional_count("sliding_window", None)),
        feed_forward=MlpSpec(inner, bias, "mlp.c_fc", None, "mlp.c_proj", gated=False),
        qkv_bias=bias,
        output_bias=bias,
    )


def stablelm(config: Config) -> DecoderSpec:
    """StableLM (Bellagente et al. 2024): a part of each head turns; the larger ones have norms of
    each head's query and key, and compute side by side.
    """
    fields = Fields(config)
    parallel = fields.flag("use_parallel_residual", False)
    return _layer_normed(
        config,
        partial=0.25,
        qkv_bias=fields.flag("use_qkv_bias", False),
        query_key_norm=fields.flag("qk_layernorm", False),
        head_norms=True,
        parallel=parallel,
        norms=_PARALLEL if parallel else NormNames(),
    )


def stablelm_rename(name: str) -> str:
    """The name here of a stored tensor."""
    return name.replace("q_layernorm.", "q_norm.").replace("k_layernorm.", "k_norm.")


def together(sources: Sources) -> Sources:
    """Sources in which the norms of a layer's heads are one tensor."""
    found, norms = dict(sources), dict[str, dict[int, Source]]()
    for name in sources:
        if one := _HEAD_NORM.fullmatch(name):
            norms.setdefault(f"{one[1]}.weight", {})[int(one[2])] = found.pop(name)
    for name, heads in norms.items():
        parts = [heads[number] for number in sorted(heads)]
        shape = (len(parts), *parts[0].shape)
        found[name] = Made(shape, lambda *each: torch.stack(each), *parts)
    return found


def cohere(config: Config, **more: Any) -> DecoderSpec:
    """Command-R (Cohere 2024): side by side, planes of neighbours, scaled logits; the larger one
    has norms of each head's query and key.
    """
    fields = Fields(config)
    options: dict[str, Any] = {
        "rope_base": 500_000.0,
        "tied": True,
        "biased": False,
        "query_key_norm": fields.flag("use_qk_norm", False),
        "head_norms": True,
        "norm_bias": False,
        "parallel": True,
        "norms": _PARALLEL,
        "interleaved": True,
        "logit_scale": fields.number("logit_scale", 0.0625),
    }
    return _layer_normed(config, **options | more)


def cohere2(config: Config) -> DecoderSpec:
    """Command-R7B and Command A (Cohere 2025): every fourth layer sees all, and no positions."""
    fields = Fields(config)
    pattern = fields.count("sliding_window_pattern", 4)
    slides = [bool((i + 1) % pattern) for i in range(fields.count("num_hidden_layers"))]
    windows = layer_windows(config, fields.optional_count("sliding_window", 4096), slides)
    return cohere(
        config,
        rope_base=10_000.0,
        query_key_norm=False,
        windows=windows,
        layer_rope=tuple(None if window is None else 0 for window in windows),
    )


def _layer_normed(config: Config, **more: Any) -> DecoderSpec:
    epsilon = Fields(config).number("layer_norm_eps", 1e-5)
    usual: dict[str, Any] = {"epsilon": epsilon, "layer_norm": True, "norm_bias": True}
    return decoder_spec(config, **usual | more)
