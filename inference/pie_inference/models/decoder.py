"""The decoder that all families are: its spec says how they differ."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch

from pie_inference.attention import PreparedAttention
from pie_inference.layers.experts import Experts, Router, Stacked, WithShared, groups
from pie_inference.layers.feed_forward import Clamp, FeedForward, Gate, GatedMlp
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows, EmbeddingSite, LinearSite
from pie_inference.layers.norms import RmsNorm
from pie_inference.layers.rope import Angles, Rope
from pie_inference.memory.embeds import ImageInputs
from pie_inference.models.delta_net import DeltaNet
from pie_inference.models.latent import LatentAttention
from pie_inference.models.mixer import GroupedQueryAttention, Mixer
from pie_inference.models.network import Network
from pie_inference.models.shape import Turn
from pie_inference.models.sharding import divides_head
from pie_inference.models.spec import Block, DecoderSpec, ExpertsSpec, MlpSpec
from pie_inference.models.weights import Place, Table, Weights, product
from pie_inference.parallel.ranks import ALONE, Ranks, SummedFeedForward, SummedLinear


@dataclass(frozen=True, slots=True)
class Layer:
    """Mixer and feed-forward block, and the norms around them."""

    mixer_norm: RmsNorm
    mixer: Mixer
    mixer_outer_norm: RmsNorm | None
    mlp_norm: RmsNorm
    mlp: FeedForward
    mlp_outer_norm: RmsNorm | None


class Decoder(Network):
    """A network of our own layers."""

    def __init__(
        self,
        spec: DecoderSpec,
        weights: MutableMapping[str, torch.Tensor],
        dtype: torch.dtype,
        device: torch.device,
        ranks: Ranks = ALONE,
    ) -> None:
        """Builds the model, taking its tensors out of `weights` so that no second copy stays.

        With other ranks, spec and weights are those of this one's part (see `sharding.py`).
        """
        self.shape = spec.shape
        self._ranks = ranks
        self.activation = spec.activation  # of its feed-forward blocks
        self.spec = spec
        self._dtype, self._device = dtype, device
        self._ropes = [
            Rope(*rope.turning(), rope.positions, dtype, device, spec.interleaved)
            for rope in spec.ropes
        ]
        taken = Weights(weights, spec.epsilon, spec.norm_offset, dtype, spec.fixed_rows)
        self._norms = taken.norms
        self._gates: dict[Clamp | None, Gate] = {}
        self.few_bits = taken.few_bits  # of weights that are kept so
        self.layers = [self._take_layer(i, taken) for i in range(len(spec.feed_forward))]
        self.norm = taken.norm("model.norm")
        embedding = taken.table("model.embed_tokens.weight")
        assert embedding is not None  # the loader has looked
        self._embedding = embedding
        # A checkpoint that says it is tied may store another head: then that is the head.
        head = taken.table("lm_head.weight")
        self._divided = ranks.size > 1 and divides_head(spec, ranks.size)
        if head is None and self._divided:
            head = embedding.part(ranks.size, ranks.rank)
        self._head = (head or embedding).product()
        # Rounded to the dtype, as the checkpoint was trained with.
        self._embedding_scale = float(torch.tensor(spec.embedding_scale, dtype=dtype))
        vocabulary, hidden = self.shape.vocab_size, self.shape.hidden
        # What adapters may change, by name in a checkpoint.
        self.sites: dict[str, LinearSite | EmbeddingSite] = {**taken.sites}
        self.sites["lm_head"] = LinearSite(self._head, 0, vocabulary, hidden, vocabulary)
        # On a GPU tokens are chosen that the host does not know yet.
        if self._embedding_scale == 1.0 and device.type == "cpu":
            name = "model.embed_tokens"
            self.sites[name] = EmbeddingSite(self.embed, vocabulary, hidden)
        self.tied = head is None
        self.places = {**taken.places, **self._place_tables(embedding, head)}

    def _place_tables(self, embedding: Table, head: Table | None) -> dict[str, Place]:
        """Where the embedding is, and the head, which may be the same weight."""

        def write(start: int, rows: torch.Tensor) -> None:
            embedding.write(start, rows)
            if head is None and isinstance(embedding.weight, torch.Tensor):  # or it has been packed
                self._head.write(start, rows)

        shape = (self.shape.vocab_size, self.shape.hidden)
        places: dict[str, Place] = {}
        if embedding.writable and (head is not None or self._head.writable):
            places["model.embed_tokens.weight"] = Place(shape, write)
        if head is not None and self._head.writable:
            places["lm_head.weight"] = Place(shape, self._head.write)
        return places

    def _take_layer(self, number: int, weights: Weights) -> Layer:
        spec = self.spec
        prefix = f"model.layers.{number}."
        names = spec.norms
        outer = [
            weights.norm(prefix + name) if name else None
            for name in (names.after_attention, names.after_mlp)
        ]
        return Layer(
            mixer_norm=weights.norm(prefix + names.before_attention),
            mixer=self._take_mixer(number, weights, prefix),
            mixer_outer_norm=outer[0],
            mlp_norm=weights.norm(prefix + names.before_mlp),
            mlp=self._summed_block(self._take_block(prefix, spec.feed_forward[number], weights)),
            mlp_outer_norm=outer[1],
        )

    def _take_mixer(self, number: int, weights: Weights, prefix: str) -> Mixer:
        spec = self.spec
        before = sum(spec.recurrent[:number])  # layers with a state
        if spec.delta is not None and spec.recurrent[number]:
            return DeltaNet(spec.delta, before, weights, prefix, spec.epsilon)
        output = self._summed(weights.linear(f"{prefix}self_attn.o_proj"))
        if spec.latent is not None:
            return LatentAttention(spec, spec.latent, number, weights, self._ropes, output)
        stored = number - before
        return GroupedQueryAttention(spec, number, stored, weights, self._ropes, output)

    def _summed(self, part: Linear) -> Linear:
        return part if self._ranks.size == 1 else SummedLinear(part, self._ranks)

    def _summed_block(self, part: FeedForward) -> FeedForward:
        return part if self._ranks.size == 1 else SummedFeedForward(part, self._ranks)

    def _take_block(self, prefix: str, block: Block, weights: Weights) -> FeedForward:
        if isinstance(block, MlpSpec):
            return self._take_mlp(prefix, block, weights)
        stacked = None
        if self._groups(block):
            sizes = (block.experts, self.shape.hidden, block.inner, block.bias)
            stacked = Stacked.empty(*sizes, self._dtype, self._device)
        mixture = Experts(
            self._take_router(f"{prefix}{block.router}", block, weights),
            [
                self._take_mlp(prefix, block.expert(i), weights, block.clamp, stacked, i)
                for i in range(block.experts)
            ],
            self._gate(block.clamp),
            stacked,
        )
        if block.shared is None:
            return mixture
        gate = weights.linear(prefix + block.shared_gate) if block.shared_gate else None
        return WithShared(mixture, self._take_mlp(prefix, block.shared, weights), gate)

    def _take_router(self, name: str, block: ExpertsSpec, weights: Weights) -> Router:
        if not block.routing.sigmoid:
            return Router(weights.linear(name), block.routing)
        # As it is trained: in float32, which no adapter changes.
        made = product(weights.tensor(f"{name}.weight").float(), None, self.spec.fixed_rows)
        correction = weights.optional(f"{name}.e_score_correction_bias")
        return Router(made, block.routing, None if correction is None else correction.float())

    def _groups(self, block: ExpertsSpec) -> bool:
        return groups(self._dtype, self._device, self.shape.hidden, block.inner)

    def _take_mlp(
        self,
        prefix: str,
        block: MlpSpec,
        weights: Weights,
        clamp: Clamp | None = None,
        into: Stacked | None = None,
        number: int = 0,
    ) -> GatedMlp:
        """A block; its tensors are brought to their place in a stack, if there is one."""
        first: tuple[torch.Tensor | None, ...] = (None, None)
        second = first
        if into is not None:
            first = _entries(number, into.gate_up, into.gate_up_bias)
            second = _entries(number, into.down, into.down_bias)
        names = [prefix + name for name in (block.gate, block.up) if name]
        return GatedMlp(
            weights.linear(*names, into=first[0], bias_into=first[1]),
            weights.linear(f"{prefix}{block.down}", into=second[0], bias_into=second[1]),
            self._gate(clamp),
            self.spec.fixed_rows,
        )

    def _gate(self, clamp: Clamp | None) -> Gate:
        return self._gates.setdefault(clamp, Gate(self.spec.activation, clamp))

    @property
    def graphable(self) -> bool:  # type: ignore[override]
        """True if equally large forwards run the same kernels and never wait for the device: the
        host needs row counts of experts that are not grouped.
        """
        blocks = self.spec.feed_forward
        return all(self._groups(block) for block in blocks if isinstance(block, ExpertsSpec))

    def turns(self) -> list[Turn | None] | None:
        """See `Network.turns`."""
        if self.shape.latent or self.shape.recurrent is not None:
            return None
        ropes = [Turn(rope.frequencies(), self.spec.interleaved) for rope in self.spec.ropes]
        layers = self.spec.layer_rope
        return [None if number is None else ropes[number] for number in layers]

    def use(self, kernels: Kernels) -> None:
        """See `Network.use`."""
        for rope, spec in zip(self._ropes, self.spec.ropes, strict=True):
            # The kernel turns whole heads, by halves.
            if spec.head_dim == self.shape.head_dim and not self.spec.interleaved:
                rope.use(kernels)
        parts: list[RmsNorm | Gate] = [*self._norms, *self._gates.values()]
        for part in parts:
            part.use(kernels)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """See `Network.embed`."""
        found = self._embedding.rows(tokens)
        return found if self._embedding_scale == 1.0 else found.mul_(self._embedding_scale)

    def forward(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        attention: PreparedAttention,
        outputs: torch.Tensor | None,
        adapters: AdapterRows | None = None,
        images: ImageInputs | None = None,
    ) -> torch.Tensor:
        """See `Network.forward`."""
        angles = self.angles(positions)
        scale = self.spec.residual_scale
        last = len(self.layers) - 1
        # On a CPU what the layers add to is not rounded, which would be most of the error.
        x = hidden.float() if hidden.device.type == "cpu" else hidden
        for i, layer in enumerate(self.layers):
            if (changes := attention.changes) is not None and i in changes.at:
                x = x.clone()
                changes.before(i, x)
            wanted = outputs if i == last else None
            mixed = layer.mixer(layer.mixer_norm(x), angles, attention, wanted, adapters)
            if wanted is not None:
                x = x.index_select(0, wanted)
                if not wanted.shape[0]:
                    return x
                adapters = None if adapters is None else adapters.of_outputs()
            x = _add_mixed(layer, x, mixed, adapters, scale)
            normed = layer.mlp_norm(x)
            if layer.mlp_outer_norm is None and scale == 1.0:
                x = layer.mlp.add_to(x, normed, adapters)
            else:
                y = layer.mlp(normed, adapters)
                x = x + (y * scale if layer.mlp_outer_norm is None else layer.mlp_outer_norm(y))
            if self.between_layers is not None:
                self.between_layers()
        return self.norm(x)

    def lens(self, x: torch.Tensor) -> torch.Tensor:
        """The logits that the last norm and the head make of residual streams `[n, hidden]`,
        float32 `[n, vocabulary]`.
        """
        return self.logits(self.norm(x)).float()

    def angles(self, positions: torch.Tensor) -> list[Angles]:
        """By what inputs at positions `[t]` turn, for each rope."""
        return [rope.angles(positions) for rope in self._ropes]

    def logits(
        self, hidden: torch.Tensor, *, every: bool = False, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """See `Network.logits`."""
        cap, found = self.spec.logit_softcap, self._head.widely(hidden)
        if adapters is not None:
            adapters.add_(found, hidden, self._head)
        if self._divided:
            found = self._ranks.joined(found)
        if self.spec.logit_scale != 1.0:
            found = found * self.spec.logit_scale
        if cap is not None:
            found = found.float().div_(cap).tanh_().mul_(cap)
        if every or self.no_tokens is None:
            return found
        return found.index_fill_(1, self.no_tokens, -torch.inf)


def _entries(number: int, *tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    return tuple(None if tensor is None else tensor[number] for tensor in tensors)


def _add_mixed(
    layer: Layer,
    x: torch.Tensor,
    mixed: torch.Tensor,
    adapters: AdapterRows | None,
    scale: float,
) -> torch.Tensor:
    """`x` and what the mixer's output product makes of what it has mixed, `[t, hidden]`."""
    output = layer.mixer.output
    norm = layer.mixer_outer_norm
    added = norm is None and scale == 1.0
    y = output.add_to(x, mixed) if added else output(mixed)
    if adapters is not None:
        adapters.add_(y, mixed, output)
    if added:
        return y
    return x + (y * scale if norm is None else norm(y))
