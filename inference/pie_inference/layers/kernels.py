"""Kernels that a device may have for what layers else put together from PyTorch's operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch

Norm: TypeAlias = Callable[[torch.Tensor, torch.Tensor, float, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Kernels:
    """None, or nothing, stands for PyTorch's operations."""

    # Of rows `[n, size]` or `[n, heads, size]` by a weight `[size]` of the same dtype, and epsilon;
    # into the third tensor if there is one. The second kernel adds 1 to the weight, and takes `[n,
    # size]`.
    norm: Norm | None = None
    norm_from_one: Norm | None = None
    # `activation(gate) * up`, `[n, size]`, of gate and up side by side, by the activation's name.
    gated: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)
    # Rotates heads `[n, heads, head_dim]`, two or more, in place, by positions `[n]` and a float32
    # table `[positions, head_dim]` of cosines, then sines.
    rotate: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None] | None = None
