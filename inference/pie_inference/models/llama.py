"""Llama (Touvron et al. 2023; Grattafiori et al. 2024), and checkpoints of the same architecture."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.attention.base import PreparedAttention
from pie_inference.errors import LoadError
from pie_inference.layers.linear import Linear, linear
from pie_inference.layers.rms_norm import RmsNorm
from pie_inference.layers.rope import Rope, rope_frequencies
from pie_inference.models.base import Model, ModelShape


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: RmsNorm
    query_key_value: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim
    attention_output: Linear  # heads * head_dim -> hidden
    mlp_norm: RmsNorm
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear  # intermediate -> hidden


class Llama(Model):
    """Pre-norm decoder: RMSNorm, rotary grouped-query attention, SwiGLU."""

    def __init__(
        self,
        config: Mapping[str, Any],
        weights: MutableMapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Builds the model, taking its tensors out of `weights` so that no second copy stays."""
        self.shape = llama_shape(config)
        self._epsilon = float(config.get("rms_norm_eps", 1e-6))
        frequencies = rope_frequencies(dict(config), self.shape.head_dim)
        self._rope = Rope(frequencies, self.shape.max_position, dtype, device)
        self._layers = [
            self._take_layer(weights, f"model.layers.{i}.") for i in range(self.shape.layers)
        ]
        self._norm = self._take_norm(weights, "model.norm")
        self._embedding = weights.pop("model.embed_tokens.weight")
        self._head = linear(weights.pop("lm_head.weight", self._embedding))

    def _take_layer(self, weights: MutableMapping[str, torch.Tensor], prefix: str) -> _Layer:
        def joined(block: str, *names: str) -> Linear:
            """One product in the place of several that have the same input."""
            parts = [weights.pop(f"{prefix}{block}.{n}_proj.weight") for n in names]
            biases = [weights.pop(f"{prefix}{block}.{n}_proj.bias", None) for n in names]
            bias = (
                torch.cat([b for b in biases if b is not None]) if biases[0] is not None else None
            )
            return linear(torch.cat(parts), bias)

        return _Layer(
            attention_norm=self._take_norm(weights, prefix + "input_layernorm"),
            query_key_value=joined("self_attn", "q", "k", "v"),
            attention_output=joined("self_attn", "o"),
            mlp_norm=self._take_norm(weights, prefix + "post_attention_layernorm"),
            gate_up=joined("mlp", "gate", "up"),
            down=joined("mlp", "down"),
        )

    def _take_norm(self, weights: MutableMapping[str, torch.Tensor], name: str) -> RmsNorm:
        return RmsNorm(weights.pop(name + ".weight"), self._epsilon)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states `[n, hidden]` of tokens `[n]`."""
        return self._embedding.index_select(0, tokens)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attention: PreparedAttention,
        outputs: torch.Tensor | None,
    ) -> torch.Tensor:
        """See `Model.forward`."""
        shape = self.shape
        query_width = shape.heads * shape.head_dim
        rotated = shape.heads + shape.kv_heads
        cos, sin = self._rope.angles(positions)
        last = shape.layers - 1
        x = hidden
        for i, layer in enumerate(self._layers):
            qkv = layer.query_key_value(layer.attention_norm(x))
            heads = qkv.view(x.shape[0], rotated + shape.kv_heads, shape.head_dim)
            self._rope.rotate_(heads[:, :rotated], cos, sin)
            attention.store(i, qkv[:, query_width:])
            if i == last and outputs is not None:
                if outputs.shape[0] == 0:
                    return x[:0]
                attended = attention.attend(i, heads[:, : shape.heads]).index_select(0, outputs)
                x = x.index_select(0, outputs)
            else:
                attended = attention.attend(i, heads[:, : shape.heads])
            x = layer.attention_output.add_to(x, attended)
            gate, up = layer.gate_up(layer.mlp_norm(x)).chunk(2, -1)
            x = layer.down.add_to(x, F.silu(gate).mul_(up))
        return self._norm(x)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits `[n, vocab_size]`."""
        return self._head(hidden)


def llama_shape(config: Mapping[str, Any]) -> ModelShape:
    """Sizes of a Llama from its config.json.

    Raises:
        LoadError: if one lacks, is no positive number, or does not fit the others.
    """

    def number(key: str, default: int | None = None) -> int:
        value = config.get(key)
        if value is None:
            value = default
        if value is None:
            raise LoadError(f"config.json lacks {key!r}")
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise LoadError(f"config.json: {key!r} is {value!r}, not a positive whole number")
        return value

    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise LoadError(
            f"config.json: hidden_act {config['hidden_act']!r} is not supported (silu is)"
        )
    hidden, heads = number("hidden_size"), number("num_attention_heads")
    kv_heads = number("num_key_value_heads", heads)
    head_dim = number("head_dim", hidden // heads)
    if heads % kv_heads:
        raise LoadError(
            f"config.json: {heads} attention heads do not divide among {kv_heads} kv heads"
        )
    if head_dim % 2:
        raise LoadError(f"config.json: rotary embedding needs an even head_dim, not {head_dim}")
    return ModelShape(
        architecture="LlamaForCausalLM",
        layers=number("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=number("vocab_size"),
        max_position=number("max_position_embeddings", 2048),
    )


def llama_tensors(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a checkpoint must have."""
    s = llama_shape(config)
    inner = config.get("intermediate_size")
    if not isinstance(inner, int) or inner <= 0:
        raise LoadError(
            f"config.json: 'intermediate_size' is {inner!r}, not a positive whole number"
        )
    query, key = s.heads * s.head_dim, s.kv_heads * s.head_dim
    products = {
        "self_attn.q_proj": (query, s.hidden),
        "self_attn.k_proj": (key, s.hidden),
        "self_attn.v_proj": (key, s.hidden),
        "self_attn.o_proj": (s.hidden, query),
        "mlp.gate_proj": (inner, s.hidden),
        "mlp.up_proj": (inner, s.hidden),
        "mlp.down_proj": (s.hidden, inner),
    }
    biased = {
        "self_attn": config.get("attention_bias", False),
        "mlp": config.get("mlp_bias", False),
    }
    tensors: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (s.vocab_size, s.hidden),
        "model.norm.weight": (s.hidden,),
    }
    if not config.get("tie_word_embeddings", False):
        tensors["lm_head.weight"] = (s.vocab_size, s.hidden)
    for i in range(s.layers):
        prefix = f"model.layers.{i}."
        tensors[prefix + "input_layernorm.weight"] = (s.hidden,)
        tensors[prefix + "post_attention_layernorm.weight"] = (s.hidden,)
        for name, (rows, columns) in products.items():
            tensors[f"{prefix}{name}.weight"] = (rows, columns)
            if biased[name.partition(".")[0]]:
                tensors[f"{prefix}{name}.bias"] = (rows,)
    return tensors
