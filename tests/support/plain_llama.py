"""A Llama as the contract describes it: one forward at a time, no batch, no page, float64.

What an input attends to is said one by one, so every rule of `forward` can be written down as it
is. The weights are those that `transformers` loads, merged with those of an adapter by PEFT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM


@dataclass(eq=False)
class Node:
    """An input that went through a forward: what others see of it, and what came of it."""

    keys: list[Tensor] = field(default_factory=list)  # a layer: [kv heads, head size], rotated
    values: list[Tensor] = field(default_factory=list)  # a layer: [kv heads, head size]
    hidden: Tensor = field(default_factory=lambda: torch.empty(0))  # [hidden], after the final norm


class PlainLlama:
    """A checkpoint, and adapters of it by name; the name of none is empty."""

    def __init__(self, folder: Path, adapters: Mapping[str, Path] | None = None) -> None:
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        config = base.config
        self.layers = int(config.num_hidden_layers)
        self.heads = int(config.num_attention_heads)
        self._kv_heads = int(config.num_key_value_heads)
        self._size = int(config.head_dim)
        self._epsilon = float(config.rms_norm_eps)
        theta = float(config.rope_parameters["rope_theta"])
        powers = torch.arange(0, self._size, 2, dtype=torch.float64) / self._size
        self._frequencies = theta**-powers
        self._weights = {"": _doubles(base)}
        for name, path in (adapters or {}).items():
            fresh = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
            from peft import PeftModel  # takes seconds: only where it is used

            merged = PeftModel.from_pretrained(fresh, path).merge_and_unload()
            self._weights[name] = _doubles(merged)

    def token(self, token: int) -> Tensor:
        """A token's embed, `[hidden]`."""
        return self._weights[""]["model.embed_tokens.weight"][token]

    def probabilities(self, hidden: Tensor) -> Tensor:
        """Next-token distribution `[vocab]` after an output embed."""
        return torch.softmax(self.logits(hidden), -1)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits `[vocab]` after an output embed."""
        return self._weights[""]["lm_head.weight"] @ hidden

    def forward(
        self,
        inputs: Sequence[tuple[Tensor, int]],
        past: Sequence[Node],
        visible: Sequence[Sequence[bool]],
        adapter: str = "",
    ) -> tuple[list[Node], Tensor]:
        """One forward of embeds at positions.

        `visible` has a row an input over the past and then the inputs. Returns a node an input, and
        the attention probabilities, `[layers, heads, inputs, columns]`.
        """
        weights = self._weights[adapter]
        nodes = [Node() for _ in inputs]
        rows = [embed for embed, _ in inputs]
        attention = []
        for layer in range(self.layers):
            prefix = f"model.layers.{layer}."
            normed = [self._norm(row, weights[prefix + "input_layernorm.weight"]) for row in rows]
            queries = []
            for node, row, (_, position) in zip(nodes, normed, inputs, strict=True):
                q, k, v = (weights[f"{prefix}self_attn.{p}_proj.weight"] @ row for p in "qkv")
                queries.append(self._rotate(q.view(self.heads, -1), position))
                node.keys.append(self._rotate(k.view(self._kv_heads, -1), position))
                node.values.append(v.view(self._kv_heads, -1))
            columns = [*past, *nodes]
            shares = torch.zeros(self.heads, len(inputs), len(columns), dtype=torch.float64)
            for i, query in enumerate(queries):
                seen = [j for j, shown in enumerate(visible[i]) if shown]
                mixed = torch.zeros(self.heads, self._size, dtype=torch.float64)
                if seen:
                    keys, values = (
                        torch.stack(one).repeat_interleave(self.heads // self._kv_heads, 1)
                        for one in (
                            [columns[j].keys[layer] for j in seen],
                            [columns[j].values[layer] for j in seen],
                        )
                    )
                    scores = torch.einsum("hd,shd->hs", query, keys) / self._size**0.5
                    weight = torch.softmax(scores, -1)
                    shares[:, i, seen] = weight
                    mixed = torch.einsum("hs,shd->hd", weight, values)
                out = weights[prefix + "self_attn.o_proj.weight"] @ mixed.flatten()
                rows[i] = self._feed_forward(rows[i] + out, weights, prefix)
            attention.append(shares)
        for node, row in zip(nodes, rows, strict=True):
            node.hidden = self._norm(row, weights["model.norm.weight"])
        return nodes, torch.stack(attention)

    def _feed_forward(self, row: Tensor, weights: dict[str, Tensor], prefix: str) -> Tensor:
        x = self._norm(row, weights[prefix + "post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(weights[prefix + "mlp.gate_proj.weight"] @ x)
        up = weights[prefix + "mlp.up_proj.weight"] @ x
        return row + weights[prefix + "mlp.down_proj.weight"] @ (gate * up)

    def _norm(self, row: Tensor, weight: Tensor) -> Tensor:
        return row * torch.rsqrt(row.square().mean() + self._epsilon) * weight

    def _rotate(self, heads: Tensor, position: int) -> Tensor:
        angles = position * self._frequencies
        one, other = heads.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


def causal(positions: Sequence[int], past: int) -> list[list[bool]]:
    """The contract's rule: all of the past, and inputs of lower position, or equal and not
    after.
    """
    return [
        [True] * past + [q < p or (q == p and j <= i) for j, q in enumerate(positions)]
        for i, p in enumerate(positions)
    ]


def _doubles(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().double() for name, tensor in model.state_dict().items()}
