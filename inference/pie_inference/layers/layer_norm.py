"""Layer normalization (Ba et al. 2016)."""

from __future__ import annotations

import torch

from pie_inference.layers.kernels import Kernels


class LayerNorm:
    """`(x - mean(x)) / sqrt(var(x) + epsilon) * weight + bias` over the last dimension."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, epsilon: float) -> None:
        """Takes a weight `[size]`, or one of each head `[heads, size]`, and perhaps a bias."""
        self._size = weight.shape[-1:]
        self._weight, self._bias, self._epsilon = weight, bias, epsilon

    def use(self, kernels: Kernels) -> None:
        """No device has one for it."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalizes `[..., size]`."""
        if self._weight.dim() == 1:
            return torch.layer_norm(x, self._size, self._weight, self._bias, self._epsilon)
        return torch.layer_norm(x, self._size, eps=self._epsilon) * self._weight

    def apply_(self, x: torch.Tensor) -> None:
        """Normalizes heads `[n, heads, size]` in place."""
        x.copy_(self(x))
