"""Matrix products with fixed weights, laid out for how they are used: a few rows at a time.

`grouped.py` has those that `step.c` computes as well, weights in few bits or in bfloat16.

Measured on two cores with 1, 8 and 32 rows: oneDNN with packed bfloat16 weights takes 0.5 to 0.8 of
`F.linear`'s time; in float32 MKL with transposed weights takes 0.75 to 1.0 of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch


class Linear(ABC):
    """`y = x Wᵀ + b`, with `W` `[out, in]` fixed until it is written to."""

    writable = False  # True if `write` puts other numbers in place of those of `W`
    _bias: torch.Tensor | None = None

    @abstractmethod
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`y` `[n, out]` of `x` `[n, in]`."""

    def widely(self, x: torch.Tensor) -> torch.Tensor:
        """`y` in float32, or in another dtype where that is what there is."""
        return self(x)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """`residual + y`, `[n, out]`; may be put where the residual is."""
        return residual + self(x)

    @property
    def has_bias(self) -> bool:
        """True if there is a `b`."""
        return self._bias is not None

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Puts rows `[n, in]` of `W` where others were, in its dtype; only if it is `writable`."""
        raise NotImplementedError

    def write_bias(self, start: int, numbers: torch.Tensor) -> None:
        """Puts numbers `[n]` of `b` where others were; only if it is `writable` and has one."""
        assert self._bias is not None
        self._bias[start : start + len(numbers)] = numbers


def linear(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest product for where the weight lies and its dtype."""
    if weight.device.type != "cpu":
        return _InPlace(weight.t(), bias)
    if weight.dtype == torch.bfloat16:
        if packs_bfloat16():
            return _Packed(weight, bias)
        return _Widened(weight.t().float().contiguous(), bias)
    return _Plain(weight.t().contiguous(), bias)


def for_many_rows(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """The fastest product on a CPU for a thousand rows: in float32 packed weights take 0.83 of
    MKL's time there.
    """
    packs: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if weight.dtype == torch.float32 and packs:
        return _Packed(weight, bias)
    return linear(weight, bias)


def packs_bfloat16() -> bool:
    """True if this CPU has the instructions that oneDNN needs for packed bfloat16 weights."""
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported


class _Transposed(Linear):
    writable = True

    def __init__(self, matrix: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._matrix = matrix  # [in, out]
        self._bias = bias

    def write(self, start: int, rows: torch.Tensor) -> None:
        self._matrix[:, start : start + len(rows)] = rows.t()


class _Plain(_Transposed):
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._bias is None:
            return torch.mm(x, self._matrix)
        return torch.addmm(self._bias, x, self._matrix)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = torch.addmm(residual, x, self._matrix)
        return y if self._bias is None else y.add_(self._bias)


class _Widened(_Transposed):
    """bfloat16 on a CPU without instructions for it: weights are held in float32, twice the memory.

    There PyTorch's own bfloat16 product takes 4 to 40 times as long as this one.
    """

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.widely(x).to(x.dtype)

    def widely(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x.float(), self._matrix)
        if self._bias is not None:
            y += self._bias
        return y


class _InPlace(_Plain):
    """On a GPU: the sum goes where the residual is, which saves copying it first."""

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = residual.addmm_(x, self._matrix)
        return y if self._bias is None else y.add_(self._bias)


class _Packed(Linear):
    """oneDNN with weights packed once: `F.linear` would pack them in every call."""

    writable = True

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self._bias = bias
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._product_add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._product(x, self._weight, self._bias, "none", [], "")
        return y

    def widely(self, x: torch.Tensor) -> torch.Tensor:
        y = self(x)  # oneDNN rounds it; a second product says what was lost
        rest: torch.Tensor = self._product_add(x, -y, self._weight, self._bias, "add")
        return y.float() + rest

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        if residual.dtype != x.dtype:
            return residual + self(x)
        y: torch.Tensor = self._product_add(x, residual, self._weight, self._bias, "add")
        return y

    def write(self, start: int, rows: torch.Tensor) -> None:
        whole = self._weight.to_dense()
        whole[start : start + len(rows)] = rows
        self._weight = torch.ops.mkldnn._reorder_linear_weight(whole, None)
