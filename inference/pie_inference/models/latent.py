"""DeepSeek's latent attention (MLA, 2024): keys and values of all heads are one short vector."""

from __future__ import annotations

import torch

from pie_inference.attention import PreparedAttention
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows, adapted
from pie_inference.layers.rope import Angles, Rope
from pie_inference.models.mixer import Mixer, attended
from pie_inference.models.spec import DecoderSpec, LatentSpec
from pie_inference.models.weights import Weights

NORM_EPSILON = 1e-6  # of the norms within; config.json's is that of the others


class LatentAttention(Mixer):
    """A slot holds a token's latent, and behind it one key that turns, for all heads.

    What would lead from the latent to a head's key is applied to its query instead, and what would
    lead to its value to the result: all heads attend to the latents themselves, as to one key head.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        latent: LatentSpec,
        number: int,
        weights: Weights,
        ropes: list[Rope],
        output: Linear,
    ) -> None:
        """Takes what it needs out of the weights, for a layer of that number."""
        prefix = f"model.layers.{number}.self_attn."
        self._number, self._latent = number, latent
        self._heads = heads = spec.shape.heads
        if latent.query_rank is None:
            queries, self._query_norm, self._query_up = "q_proj", None, None
        else:
            queries = "q_a_proj"
            self._query_norm = weights.norm(f"{prefix}q_a_layernorm", NORM_EPSILON)
            self._query_up = weights.linear(f"{prefix}q_b_proj")
        self._down = weights.linear(prefix + queries, f"{prefix}kv_a_proj_with_mqa")
        self._norm = weights.norm(f"{prefix}kv_a_layernorm", NORM_EPSILON)
        up = weights.tensor(f"{prefix}kv_b_proj.weight").view(heads, -1, latent.rank)
        self._key_up = up[:, : latent.plain].contiguous()  # [heads, plain, rank]
        self._value_up = up[:, latent.plain :].transpose(1, 2).contiguous()  # [heads, rank, value]
        self._rope = ropes[0]
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
        size = self._latent
        down = adapted(self._down, x, adapters)
        rest = size.rank + size.turned
        queries, latent, turned = down.tensor_split((-rest, -size.turned), -1)
        stored = torch.cat([self._norm(latent), turned], -1)  # [t, rank + turned]
        self._rope.rotate_(stored[:, None, size.rank :], *angles[0])
        attention.store(self._number, stored)

        if self._query_norm is not None and self._query_up is not None:
            queries = adapted(self._query_up, self._query_norm(queries), adapters)
        by_head = queries.reshape(x.shape[0], self._heads, size.plain + size.turned)
        absorbed = torch.bmm(by_head[..., : size.plain].transpose(0, 1), self._key_up)
        whole = torch.cat([absorbed.transpose(0, 1), by_head[..., size.plain :]], -1)
        self._rope.rotate_(whole[..., size.rank :], *angles[0])
        found = attended(attention, self._number, whole, None, wanted)
        # The values are the latents; what follows them in a slot is no part of the result.
        found = found.view(-1, self._heads, rest)[..., : size.rank]
        values = torch.bmm(found.transpose(0, 1), self._value_up)  # [heads, o, value]
        return values.transpose(0, 1).flatten(1)
