"""Products of a module by ours: laid out for few rows, in few bits on request, with adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import nn

from pie_inference.checkpoints.sources import Source
from pie_inference.errors import LoadError
from pie_inference.layers.grouped import GROUP, GroupedLinear, Packed, fits, rounded
from pie_inference.layers.linear import Linear, linear
from pie_inference.layers.lora import AdapterRows, LinearSite
from pie_inference.layers.native import library
from pie_inference.models.few_bits import BITS, ROUTERS, keeper

_adapters: ContextVar[AdapterRows | None] = ContextVar("adapters", default=None)


@contextmanager
def adapting(rows: AdapterRows | None) -> Iterator[None]:
    """Products within get what adapters add to these rows."""
    token = _adapters.set(rows)
    try:
        yield
    finally:
        _adapters.reset(token)


class Facts(torch.Tensor):
    """A weight without numbers, of which a module may ask its dtype, device and shape.

    PyTorch multiplies with such a one without an error, and gives what happens to be in memory.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Raises `LoadError` for all that would read its numbers."""
        if func.__name__ not in ("__get__", "size", "dim"):
            raise LoadError("it reads the weight of a linear layer by itself")
        plain: Any = super()
        return plain.__torch_function__(func, types, args, kwargs)


class Ours(nn.Module):
    """In the place of a linear layer."""

    def __init__(self, of: nn.Linear, quantize: str | None, kept: Packed | None = None) -> None:
        """Takes the layer, and in which form to keep its weight; or what its weight is kept in."""
        super().__init__()
        self.in_features, self.out_features = of.in_features, of.out_features
        # Some ask a layer for its dtype; there is nothing to compute with.
        empty = torch.empty_like(of.weight, device="meta")
        self.weight: torch.Tensor = empty.as_subclass(Facts)
        bias = None if of.bias is None else of.bias.detach()
        if kept is None and quantize is not None and fits(of.in_features, GROUP):
            kept = rounded(of.weight.detach(), BITS[quantize])
        self.made: Linear
        self.made = GroupedLinear([kept], bias) if kept else linear(of.weight.detach(), bias)
        self.rows: set[int] = set()  # that it was given in one call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`[..., out]` of `[..., in]`."""
        flat = x.reshape(-1, self.in_features)
        found = self.made(flat)
        if (adapters := _adapters.get()) is not None:
            adapters.add_(found, flat, self.made)
        else:
            self.rows.add(len(flat))
        return found.view(*x.shape[:-1], self.out_features)


class Kept:
    """Weights of a module's linear layers that stay in few bits, as they are stored."""

    def __init__(self, empty: nn.Module) -> None:
        """Takes a module of the same class, without numbers."""
        layers = (name for name, part in empty.named_modules() if type(part) is nn.Linear)
        self._wanted = {f"{name}.weight" for name in layers}
        self.packed: dict[str, Packed] = {}
        self._keep = keeper(self.packed, None, True)

    def placeholder(self, name: str, source: Source, dtype: torch.dtype) -> torch.Tensor | None:
        """The placeholder of a stored weight that is kept, until `give`; None for others."""
        if name not in self._wanted or not self._keep(name, source):
            return None
        return torch.zeros((), dtype=dtype).expand(source.shape)

    def give(self, module: nn.Module) -> None:
        """Puts ours in the place of the layers. Raises `LoadError` if one has become another."""
        for name, packed in self.packed.items():
            layer = module.get_submodule(name.removesuffix(".weight"))
            if not isinstance(layer, nn.Linear) or any(layer.weight.stride()):
                raise LoadError(f"{name} is in few bits, and it is arranged when it is read")
            _put(module, name.removesuffix(".weight"), Ours(layer, None, packed))


def _put(module: nn.Module, name: str, ours: Ours) -> None:
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, ours)


def give_products(module: nn.Module, within: nn.Module, quantize: str | None) -> dict[str, Ours]:
    """Puts ours in the place of the linear layers of a part of a module; all that are there, by
    their names in the module. Raises `LoadError` if weights are to be rounded and this machine
    cannot have it.
    """
    if quantize is not None and not library():
        raise LoadError("quantize: needs a C compiler (cc), and one CPU")
    own = set(within.modules())
    for name, part in list(module.named_modules()):
        if type(part) is nn.Linear and part in own:
            router = ROUTERS.search(f"{name}.weight")
            ours = Ours(part, None if router else quantize)
            if router:
                ours.weight = part.weight.detach()  # some compute with it in float32
            _put(module, name, ours)
    own = set(within.modules())
    made = {n: part for n, part in module.named_modules() if part in own and type(part) is Ours}
    if quantize is not None and not any(isinstance(o.made, GroupedLinear) for o in made.values()):
        raise LoadError("quantize: it has no linear layers that can be rounded")
    return made


def sites_of(products: dict[str, Ours], rows: int) -> dict[str, LinearSite]:
    """The products that adapters may change: those of all rows of a forward, of so many."""
    return {
        name: LinearSite(one.made, 0, one.out_features, one.in_features, one.out_features)
        for name, one in products.items()
        if one.rows == {rows}
    }
