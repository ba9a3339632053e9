"""Normalization over the last dimension."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.layers.kernels import Kernels


class RmsNorm:
    """`x / sqrt(mean(x²) + epsilon) * weight` (Zhang and Sennrich 2019).

    PyTorch has one kernel for it on a GPU, but runs some ten small operations on a CPU, an eighth
    of a small model's decoding. There it is had from the layer norm's one kernel: `[x, -x]` has
    mean 0 and variance `mean(x²)`, so the first half of its layer norm is the RMS norm of `x`.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float, offset: float = 0.0) -> None:
        """Takes a weight `[size]`; `offset` is added to it, in float32 so that no bit is lost."""
        self._stored, self._offset = weight, offset
        self._kernel: Callable[..., torch.Tensor] | None = None
        self._size = weight.shape[0]
        self._epsilon = epsilon
        self._mirrored = weight.device.type == "cpu"
        self._weight = self._factors()

    def _factors(self) -> torch.Tensor:
        weight = self._stored.float() + self._offset if self._offset else self._stored
        return torch.cat([weight, weight]).float() if self._mirrored else weight

    def write(self, start: int, numbers: torch.Tensor) -> None:
        """Puts numbers `[n]` of the weight where others were."""
        self._stored[start : start + len(numbers)] = numbers
        self._weight.copy_(self._factors())

    @property
    def weight(self) -> torch.Tensor:
        """The factor, `[size]`, float32."""
        return self._stored.float() + self._offset

    def use(self, kernels: Kernels) -> None:
        """Computes with a device's kernels from now on, where they fit."""
        self._kernel = {0.0: kernels.norm, 1.0: kernels.norm_from_one}.get(self._offset)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalizes `[..., size]`, on a CPU into the dtype of the weight."""
        if self._kernel is not None and x.dtype == self._stored.dtype:
            if x.dim() == 2 or (x.dim() == 3 and self._offset == 0.0):
                return self._kernel(x, self._stored, self._epsilon, None)
            rows = self._kernel(x.reshape(-1, self._size), self._stored, self._epsilon, None)
            return rows.view(x.shape)
        if not self._mirrored:
            like_weight = x.to(self._weight.dtype)
            return F.rms_norm(like_weight, (self._size,), self._weight, self._epsilon).to(x.dtype)
        both = torch.cat([x, -x], -1)
        normed = torch.layer_norm(both, (2 * self._size,), self._weight, None, self._epsilon)
        return normed[..., : self._size].to(self._stored.dtype)

    def apply_(self, x: torch.Tensor) -> None:
        """Normalizes heads `[n, heads, size]` in place."""
        if self._kernel is not None and x.dtype == self._stored.dtype and self._offset == 0.0:
            self._kernel(x, self._stored, self._epsilon, x)
        else:
            x.copy_(self(x))
