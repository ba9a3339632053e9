"""Gated delta-net layers (Yang et al. 2025): a state in the place of keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.attention.base import PreparedAttention
from pie_inference.layers.delta_rule import gated_delta_rule
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.lora import AdapterRows
from pie_inference.layers.rope import Angles
from pie_inference.models.mixer import Mixer
from pie_inference.models.spec import DeltaSpec
from pie_inference.models.weights import Weights


class DeltaNet(Mixer):
    """A slot holds what a token writes: query, key and value before the convolution, and gates."""

    def __init__(
        self,
        delta: DeltaSpec,
        number: int,
        weights: Weights,
        prefix: str,
        epsilon: float,
    ) -> None:
        """Takes what it needs out of the weights.

        Args:
            delta: sizes.
            number: of the layer among the recurrent ones.
            weights: of the model.
            prefix: of the layer's tensors.
            epsilon: of its norm.
        """
        name = f"{prefix}linear_attn."
        self._number, self._delta = number, delta
        self._inputs = weights.linear(*(name + part for part in delta.inputs))
        self._convolution = weights.tensor(f"{name}conv1d.weight")  # [width, 1, kernel]
        self._rate = -weights.tensor(f"{name}A_log").float().exp()
        self._bias = weights.tensor(f"{name}dt_bias").float()
        self._norm = weights.norm(f"{name}norm", epsilon, offset=0.0)
        self.output = weights.linear(f"{name}out_proj")
        order = delta.order
        self._order = None if order is None else order.to(self._convolution.device)

    def use(self, kernels: Kernels) -> None:
        """See `Mixer.use`."""
        self._norm.use(kernels)

    def __call__(
        self,
        x: torch.Tensor,
        angles: list[Angles],
        attention: PreparedAttention,
        wanted: torch.Tensor | None,
        adapters: AdapterRows | None,
    ) -> torch.Tensor:
        """See `Mixer.__call__`."""
        size = self._delta
        made = self._inputs(x)
        if adapters is not None:
            adapters.add_(made, x, self._inputs)
        if self._order is not None:
            made = made.index_select(1, self._order)
        written, gate = made.tensor_split((size.slot_width,), 1)
        states = attention.states
        assert states is not None
        states.store(self._number, written)
        read = x.new_empty((x.shape[0], size.value_heads, size.value_dim))
        for segment in states.segments:
            tokens = segment.tokens(self._number)
            q, k, v = self._convolved(tokens[..., : size.mixed])
            strengths, decays = self._gates(tokens[:, size.kernel - 1 :, size.mixed :])
            if segment.writes is not None:
                strengths, decays = strengths * segment.writes, decays * segment.writes
            found, after = gated_delta_rule(
                q, k, v, decays.mT, strengths.mT, segment.start(self._number)
            )
            segment.keep(self._number, after)
            rows = found.transpose(1, 2).flatten(0, 1).index_select(0, segment.reads)
            read.index_copy_(0, segment.places, rows.to(read.dtype))
        if self._number == size.layers - 1:
            states.done()
        if wanted is not None:
            read, gate = read.index_select(0, wanted), gate.index_select(0, wanted)
        gated = self._norm(read).float() * F.silu(gate.view(read.shape).float())
        return gated.to(x.dtype).flatten(1)

    def _convolved(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values `[runs, value_heads, tokens, dim]`, float32, of what is stored
        of tokens and those before them.
        """
        size = self._delta
        mixed = F.silu(F.conv1d(tokens.mT, self._convolution, groups=size.mixed)).mT.float()
        keys = size.key_heads * size.key_dim
        heads = (size.key_heads, size.key_heads, size.value_heads)
        parts = mixed.tensor_split((keys, 2 * keys), -1)
        q, k, v = (
            part.reshape(*part.shape[:2], count, -1).transpose(1, 2)
            for part, count in zip(parts, heads, strict=True)
        )
        shared = size.value_heads // size.key_heads
        q, k = (_unit(part).repeat_interleave(shared, 1) for part in (q, k))
        return q * size.key_dim**-0.5, k, v

    def _gates(self, stored: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Strengths and decays `[runs, tokens, value_heads]`, float32."""
        strengths, steps = stored.chunk(2, -1)
        return strengths.sigmoid().float(), self._rate * F.softplus(steps.float() + self._bias)


def _unit(x: torch.Tensor) -> torch.Tensor:
    """Vectors of length 1; never divided by zero."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
