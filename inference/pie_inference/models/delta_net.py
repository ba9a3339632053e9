"""Gated delta-net layers (Yang et al. 2025): a state in the place of keys and values."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.attention import PreparedAttention
from pie_inference.layers.lora import AdapterRows, adapted
from pie_inference.layers.rope import Angles
from pie_inference.models.mixer import Mixer
from pie_inference.models.spec import DeltaSpec
from pie_inference.models.weights import Weights

CHUNK = 64  # tokens whose corrections are one triangular system


def gated_delta_rule(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    decays: torch.Tensor,
    strengths: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The values that tokens read from a state, each after it has written to it.

    Token `t` writes `S = exp(d) S + k uᵀ` with `u = s (v - exp(d) Sᵀ k)`: of its value, that which
    the state does not give for its key already. Then it reads `Sᵀ q`. A token of decay 0 and
    strength 0 writes nothing.

    Args:
        queries: `[batch, heads, tokens, key_dim]`, float32, as are all others.
        keys: the same shape.
        values: `[batch, heads, tokens, value_dim]`.
        decays: logarithms `d`, at most 0, `[batch, heads, tokens]`.
        strengths: `s`, `[batch, heads, tokens]`.
        state: `S` before the first, `[batch, heads, key_dim, value_dim]`.

    Returns:
        What is read, in the shape of the values, and the state after the last.
    """
    read = []
    for first in range(0, keys.shape[2], CHUNK):
        part = slice(first, first + CHUNK)
        q, k, v = queries[:, :, part], keys[:, :, part], values[:, :, part]
        strength = strengths[:, :, part].unsqueeze(-1)
        since = decays[:, :, part].cumsum(-1)  # of all tokens of the chunk so far
        faded = since.exp().unsqueeze(-1)
        # [.., i, j] what is left, when token i comes, of what token j has written
        left = (since.unsqueeze(-1) - since.unsqueeze(-2)).tril().exp().tril()
        # Each correction depends on those before it in the chunk: u + (s left k·k) u = s (v - old)
        known = strength * left * (k @ k.mT)
        wanted = strength * (v - faded * (k @ state))
        corrections = torch.linalg.solve_triangular(known, wanted, upper=False, unitriangular=True)
        read.append(faded * (q @ state) + (left * (q @ k.mT)) @ corrections)
        lasting = (since[..., -1:] - since).exp().unsqueeze(-1)
        state = faded[:, :, -1:] * state + (k * lasting).mT @ corrections
    return torch.cat(read, 2), state


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
        """Takes what it needs out of the weights, for that one of the recurrent layers."""
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
        made = adapted(self._inputs, x, adapters)
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
