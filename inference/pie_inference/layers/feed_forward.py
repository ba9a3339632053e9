"""Gated feed-forward blocks: dense, and a mixture of experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.layers.kernels import Kernels
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


ALIGNED = 32  # bytes of a row that kernels read 16 of at a time, gate and up alike


class FeedForward(ABC):
    """The part of a layer that treats each token by itself."""

    def use(self, kernels: Kernels) -> None:  # noqa: B027 - most have nothing to do
        """Computes with a device's kernels from now on."""

    @abstractmethod
    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]` of `x` `[t, hidden]`, whose rows may have adapters."""

    def add_to(
        self, residual: torch.Tensor, x: torch.Tensor, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """`residual + y`, `[t, hidden]`."""
        return residual + self(x, adapters)


class GatedMlp(FeedForward):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation) -> None:
        """Takes the products: hidden to twice the inner size, gate first, and inner size to hidden."""
        self._gate_up = gate_up
        self._down = down
        self._activation = ACTIVATIONS[activation]
        self._name = activation
        self._gated: Callable[[torch.Tensor], torch.Tensor] | None = None

    def use(self, kernels: Kernels) -> None:
        """See `FeedForward.use`."""
        self._gated = kernels.gated.get(self._name)

    @property
    def layers(self) -> tuple[Linear, Linear]:
        """Its products."""
        return self._gate_up, self._down

    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]`."""
        inner = self._inner(x, adapters)
        y = self._down(inner)
        if adapters is not None:
            adapters.add_(y, inner, self._down)
        return y

    def add_to(
        self, residual: torch.Tensor, x: torch.Tensor, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """`residual + y`, in one product."""
        inner = self._inner(x, adapters)
        y = self._down.add_to(residual, inner)
        if adapters is not None:
            adapters.add_(y, inner, self._down)
        return y

    def _inner(self, x: torch.Tensor, adapters: AdapterRows | None) -> torch.Tensor:
        both = self._gate_up(x)
        if adapters is not None:
            adapters.add_(both, x, self._gate_up)
        if self._gated is not None and both.shape[-1] * both.itemsize % ALIGNED == 0:
            return self._gated(both)
        gate, up = both.chunk(2, -1)
        return self._activation(gate).mul_(up)


class Experts(FeedForward):
    """Sparsely gated mixture (Shazeer et al. 2017): a router picks a few of many blocks a token."""

    def __init__(
        self, router: Linear, experts: list[GatedMlp], chosen: int, normalized: bool
    ) -> None:
        """Makes a mixture.

        Args:
            router: hidden to a score an expert.
            experts: the blocks.
            chosen: how many a token goes through, those of the highest scores.
            normalized: whether the weights of the chosen add up to one; else they are the softmax
                over all.
        """
        self._router = router
        self._experts = experts
        self._chosen = chosen
        self._normalized = normalized

    def use(self, kernels: Kernels) -> None:
        """See `FeedForward.use`."""
        for expert in self._experts:
            expert.use(kernels)

    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]`: the weighted sum of what a token's experts say."""
        scores = self._router(x)
        if adapters is not None:
            adapters.add_(scores, x, self._router)
        weights, experts = scores.softmax(-1, dtype=torch.float32).topk(self._chosen)
        if self._normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        # One product an expert: the tokens that go to it lie side by side.
        order = experts.view(-1).argsort(stable=True)
        sources = order // self._chosen
        found: list[torch.Tensor] = []
        start = 0
        counts = experts.view(-1).bincount(minlength=len(self._experts)).tolist()
        for expert, count in zip(self._experts, counts, strict=True):
            if count:  # most have none when few tokens are decoded
                rows = sources[start : start + count]
                part = x.index_select(0, rows)
                found.append(expert(part, _adapters_of(expert, rows, adapters)))
                start += count
        if not found:
            return x
        sorted_rows = torch.cat(found)
        rows = torch.empty_like(sorted_rows).index_copy_(0, order, sorted_rows)
        # Summed in the order of a token's experts: a sum that does not depend on the batch.
        weighted = rows.view(x.shape[0], self._chosen, -1) * weights.to(x.dtype).unsqueeze(-1)
        return weighted.sum(1)


def _adapters_of(
    expert: GatedMlp, rows: torch.Tensor, adapters: AdapterRows | None
) -> AdapterRows | None:
    """Adapters of the rows that go to an expert, if they change it."""
    if adapters is None or not adapters.reach(*expert.layers):
        return None
    return adapters.select(rows)
