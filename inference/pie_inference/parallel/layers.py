"""Products whose results are sums over the ranks."""

from __future__ import annotations

import torch

from pie_inference.layers.feed_forward import FeedForward
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows
from pie_inference.parallel.ranks import Ranks


class SummedLinear(Linear):
    """A product of which each rank has some of the inputs."""

    def __init__(self, part: Linear, ranks: Ranks) -> None:
        """Takes this rank's part."""
        self._part = part
        self._ranks = ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`y` `[n, out]`, the same on every rank."""
        return self._ranks.sum_(self._part(x))

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual + y`."""
        return residual + self(x)


class SummedFeedForward(FeedForward):
    """A block of which each rank has a part of the inner size."""

    def __init__(self, part: FeedForward, ranks: Ranks) -> None:
        """Takes this rank's part."""
        self._part = part
        self._ranks = ranks

    def use(self, kernels: Kernels) -> None:
        """See `FeedForward.use`."""
        self._part.use(kernels)

    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]`, the same on every rank."""
        return self._ranks.sum_(self._part(x, adapters).contiguous())
