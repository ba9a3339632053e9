"""Matrix products with fixed weights."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name


class Linear(ABC):
    """`y = x Wᵀ + b`, with `W` `[out, in]` fixed."""

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`y` `[n, out]` of `x` `[n, in]`."""

    @abstractmethod
    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual + y`, `[n, out]`."""


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest product for where the weight lies."""
    if weight.device.type == "cpu" and hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return _Packed(weight, bias)
    return _Plain(weight, bias)


class _Plain(Linear):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self._weight, self._bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if self._bias is None:
            return torch.addmm(residual, x, self._weight.t())
        return residual + F.linear(x, self._weight, self._bias)


class _Packed(Linear):
    """oneDNN with weights packed once: otherwise it packs them anew in every call (1.3 to 2 x)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._product_add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._product(x, self._weight, self._bias, "none", [], "")
        return y

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._product_add(x, residual, self._weight, self._bias, "add")
        return y
