"""The part of a layer in which tokens see each other."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from pie_inference.attention import PreparedAttention
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows, adapted
from pie_inference.layers.rope import Angles, Rope
from pie_inference.models.spec import DecoderSpec
from pie_inference.models.weights import Weights


class Mixer(ABC):
    """The part before the product `output`, which leads back to the hidden size."""

    output: Linear

    @abstractmethod
    def __call__(
        self,
        x: torch.Tensor,
        angles: list[Angles],
        attention: PreparedAttention,
        wanted: torch.Tensor | None,
        adapters: AdapterRows | None,
    ) -> torch.Tensor:
        """Mixes inputs, and keeps what later ones will see of them.

        Args:
            x: of the inputs `[t, hidden]`.
            angles: of the inputs, for each rope of the model.
            attention: of this forward.
            wanted: rows `[o]` whose result is wanted; all of them if None.
            adapters: of the inputs.

        Returns:
            What `output` takes, `[o, inputs of output]`.
        """


class GroupedQueryAttention(Mixer):
    """Attention whose query heads share key heads (Ainslie et al. 2023)."""

    def __init__(
        self,
        spec: DecoderSpec,
        number: int,
        stored: int,
        weights: Weights,
        ropes: list[Rope],
        output: Linear,
    ) -> None:
        """Takes what it needs out of the weights, for a layer of that number, which is the one
        called `stored` among those with keys and values.
        """
        prefix = f"model.layers.{number}.self_attn."
        normed, rope = spec.query_key_norm, spec.layer_rope[number]
        self._stored = stored
        self._gated = spec.output_gate
        self._shape = spec.shape
        self.query_key_value = weights.linear(*(prefix + name for name in spec.attention_names))
        self.query_norm = weights.norm(f"{prefix}q_norm") if normed else None
        self.key_norm = weights.norm(f"{prefix}k_norm") if normed else None
        self._sinks = weights.tensor(f"{prefix}sinks") if spec.shape.sinks else None
        self._rope_number = rope
        self._rope = None if rope is None else ropes[rope]
        self.output = output

    def __call__(
        self,
        x: torch.Tensor,
        angles: list[Angles],
        attention: PreparedAttention,
        wanted: torch.Tensor | None,
        adapters: AdapterRows | None,
    ) -> torch.Tensor:
        """See `Mixer.__call__`."""
        shape = self._shape
        rotated = shape.heads + shape.kv_heads
        qkv = adapted(self.query_key_value, x, adapters)
        gate = None
        if self._gated:  # behind each head's query
            both, rest = qkv.tensor_split((2 * shape.heads * shape.head_dim,), 1)
            both = both.reshape(x.shape[0], shape.heads, 2, -1)
            gate = both[:, :, 1].flatten(1)
            qkv = torch.cat([both[:, :, 0].flatten(1), rest], 1)
        heads = qkv.view(x.shape[0], rotated + shape.kv_heads, shape.head_dim)
        queries, keys = heads[:, : shape.heads], heads[:, shape.heads : rotated]
        if self.query_norm is not None and self.key_norm is not None:
            self.query_norm.apply_(queries)
            self.key_norm.apply_(keys)
        if self._rope is not None and self._rope_number is not None:
            self._rope.rotate_(heads[:, :rotated], *angles[self._rope_number])
        attention.store(self._stored, qkv[:, shape.heads * shape.head_dim :])
        found = attended(attention, self._stored, queries, self._sinks, wanted)
        if gate is None:
            return found
        gate = gate if wanted is None else gate.index_select(0, wanted)
        return found * gate.sigmoid()


def attended(
    attention: PreparedAttention,
    layer: int,
    queries: torch.Tensor,
    sinks: torch.Tensor | None,
    wanted: torch.Tensor | None,
) -> torch.Tensor:
    """The values to which the wanted rows of queries `[t, heads, head_dim]` attend, `[o, heads *
    head_dim]`.

    All queries are computed, and then chosen among: those of a group lie side by side.
    """
    if wanted is not None and not wanted.shape[0]:
        return queries.new_empty((0, queries.shape[1] * queries.shape[2]))
    found = attention.attend(layer, queries, sinks)
    return found if wanted is None else found.index_select(0, wanted)
