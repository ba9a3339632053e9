"""The decoder that all families are: its spec says how they differ."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch

from pie_inference.attention.base import PreparedAttention
from pie_inference.layers.experts import Experts, Stacked, WithShared, groups
from pie_inference.layers.feed_forward import FeedForward, GatedMlp
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.linear import Linear, linear
from pie_inference.layers.lora import AdapterRows, LinearSite
from pie_inference.layers.rms_norm import RmsNorm
from pie_inference.layers.rope import Angles, Rope
from pie_inference.models.base import Model
from pie_inference.models.sharding import divides_head
from pie_inference.models.spec import DecoderSpec, ExpertsSpec, MlpSpec
from pie_inference.parallel.layers import SummedFeedForward, SummedLinear
from pie_inference.parallel.ranks import ALONE, Ranks


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: RmsNorm | None
    query_key_value: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim
    query_norm: RmsNorm | None
    key_norm: RmsNorm | None
    rope: int | None
    attention_output: Linear  # heads * head_dim -> hidden
    attention_outer_norm: RmsNorm | None
    mlp_norm: RmsNorm | None
    mlp: FeedForward
    mlp_outer_norm: RmsNorm | None


class Decoder(Model):
    """Pre-norm decoder: RMSNorm, rotary grouped-query attention, gated feed-forward."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: MutableMapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        """Builds the model, taking its tensors out of `weights` so that no second copy stays.

        With other ranks, spec and weights are those of this one's part (see `parallel/shard.py`).
        """
        self.shape = spec.shape
        self._ranks = ranks
        self.activation = spec.activation
        self._spec = spec
        self._weights = weights
        self._dtype, self._device = dtype, device
        self._sites: dict[str, LinearSite] = {}
        self._ropes = [Rope(*rope.angles(), dtype, device, spec.interleaved) for rope in spec.ropes]
        self._layers = [self._take_layer(i) for i in range(spec.shape.layers)]
        self._norm = self._take_norm(f"{spec.prefix}norm")
        self._embedding = weights.pop(f"{spec.prefix}embed_tokens.weight")
        # A checkpoint that says it is tied may store another head: then that is the head.
        head = weights.pop(f"{spec.head}.weight", self._embedding)
        self._divided = ranks.size > 1 and divides_head(spec, ranks.size)
        if self._divided and head is self._embedding:
            head = head.chunk(ranks.size, 0)[ranks.rank]
        self._head = linear(head)
        # Rounded to the dtype, as the checkpoint was trained with.
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=dtype))
        self.sites = self._sites
        del self._weights

    def _take_layer(self, number: int) -> _Layer:
        spec = self._spec
        prefix = f"{spec.prefix}layers.{number}."
        attention = f"{prefix}self_attn."
        norms = [self._take_norm(prefix + name) if name else None for name in spec.norms]
        normed = spec.query_key_norm
        return _Layer(
            attention_norm=norms[0],
            query_key_value=self._take_linear(*(attention + n for n in spec.attention_names)),
            query_norm=self._take_norm(f"{attention}q_norm") if normed else None,
            key_norm=self._take_norm(f"{attention}k_norm") if normed else None,
            rope=spec.layer_rope[number],
            attention_output=self._summed(self._take_linear(f"{attention}o_proj")),
            attention_outer_norm=norms[1],
            mlp_norm=norms[2],
            mlp=self._summed_block(self._take_feed_forward(prefix, spec.feed_forward[number])),
            mlp_outer_norm=norms[3],
        )

    def _summed(self, part: Linear) -> Linear:
        return part if self._ranks.size == 1 else SummedLinear(part, self._ranks)

    def _summed_block(self, part: FeedForward) -> FeedForward:
        return part if self._ranks.size == 1 else SummedFeedForward(part, self._ranks)

    def _take_feed_forward(self, prefix: str, block: MlpSpec | ExpertsSpec) -> FeedForward:
        if isinstance(block, ExpertsSpec):
            return self._take_experts(prefix, block)
        return self._take_mlp(prefix, block)

    def _take_experts(self, prefix: str, block: ExpertsSpec) -> FeedForward:
        stacked = None
        if self._groups(block):
            kind = (self._dtype, self._device)
            stacked = Stacked.empty(block.experts, self.shape.hidden, block.inner, *kind)
        experts = []
        for i in range(block.experts):
            into = () if stacked is None else (stacked.gate_up[i], stacked.down[i])
            experts.append(self._take_mlp(prefix, block.expert(i), *into))
        mixture = Experts(
            self._take_linear(f"{prefix}{block.router}"),
            experts,
            block.chosen,
            block.normalized,
            self._spec.activation,
            stacked,
        )
        if block.shared is None:
            return mixture
        shared = self._take_mlp(prefix, block.shared)
        return WithShared(mixture, shared, self._take_linear(f"{prefix}{block.shared_gate}"))

    def _groups(self, block: ExpertsSpec) -> bool:
        return groups(self._dtype, self._device, self.shape.hidden, block.inner)

    def _take_mlp(
        self,
        prefix: str,
        block: MlpSpec,
        gate_up: torch.Tensor | None = None,
        down: torch.Tensor | None = None,
    ) -> GatedMlp:
        """A block, whose weights are brought to where there is room for them, if there is."""
        return GatedMlp(
            self._take_linear(
                *(prefix + name for name in (block.gate, block.up) if name), into=gate_up
            ),
            self._take_linear(f"{prefix}{block.down}", into=down),
            self._spec.activation,
        )

    def _take_linear(self, *names: str, into: torch.Tensor | None = None) -> Linear:
        """One product in the place of several that have the same input; its weights may be put
        somewhere.
        """
        parts = [self._weights.pop(f"{name}.weight") for name in names]
        biases = [self._weights.pop(f"{name}.bias", None) for name in names]
        found = [bias for bias in biases if bias is not None]
        made = linear(torch.cat(parts, out=into), torch.cat(found) if found else None)
        start, total = 0, sum(len(part) for part in parts)
        for name, part in zip(names, parts, strict=True):
            self._sites[name] = LinearSite(made, start, len(part), part.shape[1], total)
            start += len(part)
        return made

    def _take_norm(self, name: str) -> RmsNorm:
        weight = self._weights.pop(f"{name}.weight")
        return RmsNorm(weight, self._spec.epsilon, self._spec.norm_offset)

    @property
    def graphable(self) -> bool:
        """See `Model.graphable`: ungrouped experts need their row counts on the host."""
        blocks = self._spec.feed_forward
        return all(self._groups(block) for block in blocks if isinstance(block, ExpertsSpec))

    def use(self, kernels: Kernels) -> None:
        """See `Model.use`."""
        for rope, spec in zip(self._ropes, self._spec.ropes, strict=True):
            # The kernel turns whole heads, by halves.
            if spec.head_dim == self.shape.head_dim and not self._spec.interleaved:
                rope.use(kernels, *spec.angles())
        self._norm.use(kernels)
        for layer in self._layers:
            layer.mlp.use(kernels)
            for norm in (
                layer.attention_norm,
                layer.query_norm,
                layer.key_norm,
                layer.attention_outer_norm,
                layer.mlp_norm,
                layer.mlp_outer_norm,
            ):
                if norm is not None:
                    norm.use(kernels)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Hidden states `[n, hidden]` of tokens `[n]`."""
        found = self._embedding.index_select(0, tokens)
        return found if self._embedding_scale == 1.0 else found.mul_(self._embedding_scale)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attention: PreparedAttention,
        outputs: torch.Tensor | None,
        adapters: AdapterRows | None = None,
    ) -> torch.Tensor:
        """See `Model.forward`."""
        angles = [rope.angles(positions) for rope in self._ropes]
        scale = self._spec.residual_scale
        last = self.shape.layers - 1
        x = hidden
        for i, layer in enumerate(self._layers):
            queries = self._project(i, layer, x, angles, attention, adapters)
            if i == last and outputs is not None:
                if outputs.shape[0] == 0:
                    return x[:0]
                attended = attention.attend(i, queries).index_select(0, outputs)
                x = x.index_select(0, outputs)
                adapters = None if adapters is None else adapters.of_outputs()
            else:
                attended = attention.attend(i, queries)
            x = _add_attended(layer, x, attended, adapters, scale)
            normed = x if layer.mlp_norm is None else layer.mlp_norm(x)
            if layer.mlp_outer_norm is None and scale == 1.0:
                x = layer.mlp.add_to(x, normed, adapters)
            else:
                y = layer.mlp(normed, adapters)
                x = x + (y * scale if layer.mlp_outer_norm is None else layer.mlp_outer_norm(y))
        return self._norm(x)

    def _project(
        self,
        number: int,
        layer: _Layer,
        x: torch.Tensor,
        angles: list[Angles],
        attention: PreparedAttention,
        adapters: AdapterRows | None,
    ) -> torch.Tensor:
        """Stores keys and values of a layer; returns its queries `[t, heads, head_dim]`."""
        shape = self.shape
        rotated = shape.heads + shape.kv_heads
        normed = x if layer.attention_norm is None else layer.attention_norm(x)
        qkv = layer.query_key_value(normed)
        if adapters is not None:
            adapters.add_(qkv, normed, layer.query_key_value)
        heads = qkv.view(x.shape[0], rotated + shape.kv_heads, shape.head_dim)
        queries, keys = heads[:, : shape.heads], heads[:, shape.heads : rotated]
        if layer.query_norm is not None and layer.key_norm is not None:
            whole = self._spec.whole_norm
            layer.query_norm.apply_(queries.flatten(1).unsqueeze(1) if whole else queries)
            layer.key_norm.apply_(keys.flatten(1).unsqueeze(1) if whole else keys)
        if layer.rope is not None:
            self._ropes[layer.rope].rotate_(heads[:, :rotated], *angles[layer.rope])
        attention.store(number, qkv[:, shape.heads * shape.head_dim :])
        return queries

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits `[n, vocab_size]`, in the model's dtype, or in float32 if they are capped."""
        cap, found = self._spec.logit_softcap, self._head(hidden)
        if self._divided:
            found = self._ranks.joined(found)
        if self._spec.logit_scale != 1.0:
            found = found * self._spec.logit_scale
        if cap is None:
            return found
        return found.float().div_(cap).tanh_().mul_(cap)


def _add_attended(
    layer: _Layer,
    x: torch.Tensor,
    attended: torch.Tensor,
    adapters: AdapterRows | None,
    scale: float,
) -> torch.Tensor:
    """`x` and what the attention's output projection makes of what was attended to, `[t,
    hidden]`.
    """
    output = layer.attention_output
    norm = layer.attention_outer_norm
    added = norm is None and scale == 1.0
    y = output.add_to(x, attended) if added else output(attended)
    if adapters is not None:
        adapters.add_(y, attended, output)
    if added:
        return y
    return x + (y * scale if norm is None else norm(y))
