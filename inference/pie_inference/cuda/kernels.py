"""FlashInfer's kernels for layers."""

from __future__ import annotations

from typing import Any

import torch

from pie_inference.layers.kernels import Kernels
from pie_py.config.model import FlashInferConfig


def flashinfer_kernels(config: FlashInferConfig, library: Any) -> Kernels:
    """Those that are switched on, of the module `flashinfer`. They compute in bfloat16 and
    float16.
    """

    def norm(
        x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor | None
    ) -> torch.Tensor:
        found: torch.Tensor = library.rmsnorm(x, weight, epsilon, out)
        return found

    def norm_from_one(
        x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor | None
    ) -> torch.Tensor:
        found: torch.Tensor = library.gemma_rmsnorm(x, weight, epsilon, out)
        return found

    def rotate(heads: torch.Tensor, positions: torch.Tensor, table: torch.Tensor) -> None:
        # The kernel takes queries and keys, which it does not treat differently.
        library.apply_rope_with_cos_sin_cache_inplace(
            positions, heads[:, :1], heads[:, 1:], heads.shape[2], table
        )

    return Kernels(
        norm=norm if config.norm else None,
        norm_from_one=norm_from_one if config.norm else None,
        gated=(
            {"silu": library.silu_and_mul, "gelu_tanh": library.gelu_tanh_and_mul}
            if config.activation
            else {}
        ),
        rotate=rotate if config.rope else None,
    )
