"""Root mean square layer normalization (Zhang and Sennrich 2019)."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name


class RmsNorm:
    """`x / sqrt(mean(x²) + epsilon) * weight` over the last dimension.

    PyTorch has one kernel for it on a GPU, but runs some ten small operations on a CPU, an eighth of
    a small model's decoding. There it is had from the layer norm's one kernel: `[x, -x]` has mean 0
    and variance `mean(x²)`, so the first half of its layer norm is the RMS norm of `x`.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float, offset: float = 0.0) -> None:
        """Takes a weight `[size]`; `offset` is added to it, in float32 so that no bit is lost."""
        if offset:
            weight = weight.float() + offset
        self._size = weight.shape[0]
        self._epsilon = epsilon
        self._mirrored = weight.device.type == "cpu"
        self._weight = torch.cat([weight, weight]) if self._mirrored else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalizes `[..., size]`."""
        if not self._mirrored:
            like_weight = x.to(self._weight.dtype)
            return F.rms_norm(like_weight, (self._size,), self._weight, self._epsilon).to(x.dtype)
        both = torch.cat([x, -x], -1)
        normed = torch.layer_norm(both, (2 * self._size,), self._weight, None, self._epsilon)
        return normed[..., : self._size]
