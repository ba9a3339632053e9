"""Products of a module by ours: laid out for few rows, in few bits on request, with adapters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn

from pie_inference.errors import LoadError
from pie_inference.layers.grouped import GROUP, GroupedLinear, fits, rounded
from pie_inference.layers.linear import Linear, linear
from pie_inference.layers.lora import AdapterRows, LinearSite
from pie_inference.layers.native import library
from pie_inference.models.few_bits import BITS, ROUTERS

_adapters: ContextVar[AdapterRows | None] = ContextVar("adapters", default=None)


@contextmanager
def adapting(rows: AdapterRows | None) -> Iterator[None]:
    """Products within get what adapters add to these rows."""
    token = _adapters.set(rows)
    try:
        yield
    finally:
        _adapters.reset(token)


class Ours(nn.Module):
    """In the place of a linear layer."""

    def __init__(self, of: nn.Linear, quantize: str | None) -> None:
        """Takes the layer, and in which form to keep its weight."""
        super().__init__()
        self.in_features, self.out_features = of.in_features, of.out_features
        # Some ask a layer for its dtype; there is nothing to compute with.
        self.weight = torch.empty_like(of.weight, device="meta")
        bias = None if of.bias is None else of.bias.detach()
        self.made: Linear
        if quantize is not None and fits(of.in_features, GROUP):
            self.made = GroupedLinear([rounded(of.weight.detach(), BITS[quantize])], bias)
        else:
            self.made = linear(of.weight.detach(), bias)
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


def give_products(module: nn.Module, within: nn.Module, quantize: str | None) -> dict[str, Ours]:
    """Puts ours in the place of the linear layers of a part of a module; by their names in the
    module. Raises `LoadError` if weights are to be rounded and this machine cannot have it.
    """
    if quantize is not None and not library():
        raise LoadError("quantize: needs a C compiler (cc), and one CPU")
    made = {}
    own = set(within.modules())
    for name, part in list(module.named_modules()):
        if type(part) is nn.Linear and part in own:
            rounds = None if ROUTERS.search(f"{name}.weight") else quantize
            path, _, last = name.rpartition(".")
            made[name] = Ours(part, rounds)
            setattr(module.get_submodule(path), last, made[name])
    if quantize is not None and not any(isinstance(o.made, GroupedLinear) for o in made.values()):
        raise LoadError("quantize: it has no linear layers that can be rounded")
    return made


def sites_of(products: dict[str, Ours], rows: int) -> dict[str, LinearSite]:
    """What adapters may change: what is given all rows of a forward, of so many."""
    return {
        name: LinearSite(one.made, 0, one.out_features, one.in_features, one.out_features)
        for name, one in products.items()
        if one.rows == {rows}
    }
