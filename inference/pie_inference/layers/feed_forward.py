"""Gated feed-forward blocks: dense, and a mixture of experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.layers.linear import Linear

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


class FeedForward(ABC):
    """The part of a layer that treats each token by itself."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`y` `[t, hidden]` of `x` `[t, hidden]`."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual + y`, `[t, hidden]`."""
        return residual + self(x)


class GatedMlp(FeedForward):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation) -> None:
        """Takes the products: hidden to twice the inner size, gate first, and inner size to hidden."""
        self._gate_up = gate_up
        self._down = down
        self._activation = ACTIVATIONS[activation]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`y` `[t, hidden]`."""
        return self._down(self._inner(x))

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual + y`, in one product."""
        return self._down.add_to(residual, self._inner(x))

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self._gate_up(x).chunk(2, -1)
        return self._activation(gate).mul_(up)


class Experts(FeedForward):
    """Sparsely gated mixture (Shazeer et al. 2017): a router picks a few of many blocks a token."""

    def __init__(
        self, router: Linear, experts: list[FeedForward], chosen: int, normalized: bool
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

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`y` `[t, hidden]`: the weighted sum of what a token's experts say."""
        weights, experts = self._router(x).softmax(-1, dtype=torch.float32).topk(self._chosen)
        if self._normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        # One product an expert: the tokens that go to it lie side by side.
        order = experts.view(-1).argsort(stable=True)
        counts = experts.view(-1).bincount(minlength=len(self._experts)).tolist()
        parts = torch.split(x.index_select(0, order // self._chosen), counts)
        found = [
            expert(part) for expert, part in zip(self._experts, parts, strict=True) if len(part)
        ]
        if not found:
            return x
        sorted_rows = torch.cat(found)
        rows = torch.empty_like(sorted_rows).index_copy_(0, order, sorted_rows)
        # Summed in the order of a token's experts: a sum that does not depend on the batch.
        weighted = rows.view(x.shape[0], self._chosen, -1) * weights.to(x.dtype).unsqueeze(-1)
        return weighted.sum(1)
