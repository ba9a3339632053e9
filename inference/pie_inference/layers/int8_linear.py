"""Products of int8 weights with activations that are rounded to 8 bits, row by row, on a CPU.

Measured on one core with AVX-512 VNNI, divided by the time of packed bfloat16, with 1, 8, 32, and
128 rows: 4 Mi weights take 1.0, 0.8, 0.7, and 0.6, 16 Mi take 0.6, 0.7, 0.6, and 0.6. With fewer
weights one row takes longer.
"""

from __future__ import annotations

import torch

from pie_inference.layers.linear import Linear

SMALLEST = 4 << 20  # weights of a product from which on int8 is not slower for any number of rows


def multiplies_int8(device: torch.device) -> bool:
    """Whether it is a CPU with the instructions (VNNI) that make int8 products fast and exact."""
    return device.type == "cpu" and torch.cpu._is_vnni_supported()


class Int8Linear(Linear):
    """oneDNN's product of packed int8 weights and unsigned activations, exact in int32.

    Rows are rounded symmetrically, to 127 steps of their largest number; 128 is added, for signed
    activations have no fast product.
    """

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None
    ) -> None:
        """Takes int8 weights `[out, in]`, what one step of each row is `[out]`, and the bias."""
        self._weight = torch.ops.onednn.qlinear_prepack(weight, [1, weight.shape[1]])
        self._scale = scale.float().contiguous()
        self._zero = torch.zeros(len(weight), dtype=torch.int32)
        self._bias = bias
        self._product = torch.ops.onednn.qlinear_pointwise.default

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """See `Linear`; in the dtype of `x`."""
        step = x.abs().amax(1, keepdim=True).float().div_(127).clamp_(min=1e-30)
        rounded = (x / step).round_().add_(128).to(torch.uint8)
        weights = (self._weight, self._scale, self._zero, None)
        y: torch.Tensor = self._product(
            rounded, 1.0, 128, *weights, 1.0, 0, torch.float32, "none", [], ""
        )
        y.mul_(step)
        if self._bias is not None:
            y += self._bias
        return y.to(x.dtype)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """See `Linear.add_to`."""
        return residual + self(x)
