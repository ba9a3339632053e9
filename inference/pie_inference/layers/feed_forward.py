"""Feed-forward blocks with a gate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.layers.fixed_rows import by_rows
from pie_inference.layers.kernels import Kernels
from pie_inference.layers.linear import Linear
from pie_inference.layers.lora import AdapterRows, adapted

Activation = Literal["silu", "gelu_tanh", "gelu", "relu"]
ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": F.silu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "relu": F.relu,
}


ALIGNED = 32  # bytes of a row that kernels read 16 of at a time, gate and up alike


class FeedForward(ABC):
    """The part of a layer that treats each token by itself."""

    @abstractmethod
    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]` of `x` `[t, hidden]`, whose rows may have adapters."""

    def add_to(
        self, residual: torch.Tensor, x: torch.Tensor, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """`residual + y`, `[t, hidden]`."""
        return residual + self(x, adapters)


@dataclass(frozen=True, slots=True)
class Clamp:
    """The gate of gpt-oss: `gate * sigmoid(alpha * gate) * (up + 1)`, both within bounds."""

    alpha: float
    limit: float  # of the gate from above, of up from both sides

    def __call__(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """`[n, inner]`."""
        gate = gate.clamp(max=self.limit)
        return (up.clamp(-self.limit, self.limit) + 1) * gate * torch.sigmoid(gate * self.alpha)


class Gate:
    """`activation(gate) * up`, or a clamp of both, of gate and up side by side."""

    def __init__(self, activation: Activation, clamp: Clamp | None = None) -> None:
        """Of PyTorch's operations, unless `use` brings a kernel."""
        self._activation = ACTIVATIONS[activation]
        self._name = activation
        self._clamp = clamp
        self._gated: Callable[[torch.Tensor], torch.Tensor] | None = None

    def use(self, kernels: Kernels) -> None:
        """Computes with a device's kernel from now on, if it has one."""
        self._gated = None if self._clamp else kernels.gated.get(self._name)

    def __call__(self, both: torch.Tensor) -> torch.Tensor:
        """`[n, inner]` of `[n, 2 * inner]`."""
        if self._gated is not None and both.shape[-1] * both.itemsize % ALIGNED == 0:
            return self._gated(both)
        gate, up = both.chunk(2, -1)
        if self._clamp is not None:
            return self._clamp(gate, up)
        return self._activation(gate).mul_(up)


class GatedMlp(FeedForward):
    """`down(activation(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(
        self,
        gate_up: Linear,
        down: Linear,
        gate: Gate,
        fixed: bool = False,
    ) -> None:
        """Takes the products, hidden to twice the inner size, gate first, and inner to hidden; what
        is between them; and whether rows are to be independent (`fixed_rows.py`).
        """
        self._gate_up = gate_up
        self._down = down
        self._fixed = fixed
        self._gate = gate

    @property
    def layers(self) -> tuple[Linear, Linear]:
        """Its products."""
        return self._gate_up, self._down

    def __call__(self, x: torch.Tensor, adapters: AdapterRows | None = None) -> torch.Tensor:
        """`y` `[t, hidden]`."""
        inner = self._inner(adapted(self._gate_up, x, adapters))
        return adapted(self._down, inner, adapters)

    def add_to(
        self, residual: torch.Tensor, x: torch.Tensor, adapters: AdapterRows | None = None
    ) -> torch.Tensor:
        """`residual + y`, in one product."""
        inner = self._inner(adapted(self._gate_up, x, adapters))
        y = self._down.add_to(residual, inner)
        if adapters is not None:
            adapters.add_(y, inner, self._down)
        return y

    def _inner(self, both: torch.Tensor) -> torch.Tensor:
        # What PyTorch computes without vectors, at the end of a tensor, has other last bits.
        return by_rows(self._gate, both) if self._fixed else self._gate(both)
