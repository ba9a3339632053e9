"""Low-rank additions to linear layers (LoRA, Hu et al. 2021), by rows of a batch; and layers whose
outputs get other magnitudes (DoRA, Liu et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from pie_inference.device import Int32, Int64, upload
from pie_inference.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class LowRank:
    """The addition to a layer's result: `x · down · up`. Ranks are filled up with zeros to a
    multiple of `LANES`, which the fused step reads at once.
    """

    down: torch.Tensor  # [in, r]
    up: torch.Tensor  # [r, out], the scale included
    magnitude: Magnitude | None = None

    def of(self, x: torch.Tensor, layer: Linear) -> torch.Tensor:
        """The part that is added to a layer's result of `x` `[t, in]`, `[t, out]`."""
        added = x @ self.down @ self.up
        if self.magnitude is None:
            return added
        share, bias = self.magnitude
        return added + ((layer.widely(x) - bias) * share).to(added.dtype)


class Magnitude(NamedTuple):
    """Applies DoRA to a layer's own product, which has no bias."""

    share: torch.Tensor  # [out], float32: how much more of it there is; 0: as it was
    bias: torch.Tensor  # [out], float32, of the layer


class TokenRows(NamedTuple):
    """The addition to embeddings: `table[token] · up`."""

    table: torch.Tensor  # [vocab, r]
    up: torch.Tensor | None  # [r, hidden], the scale included; None: the table has whole rows


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Adapter:
    """The addition of one adapter."""

    layers: Mapping[Linear, LowRank]
    embedding: Sequence[TokenRows] = ()
    depends: bool = False  # was made of the model's weights, as a DoRA and a whole module are

    @property
    def is_fused(self) -> bool:
        """True if `step.c` computes it: it is no DoRA, and changes no embeddings."""
        magnitudes = (added.magnitude for added in self.layers.values())
        return not self.embedding and all(each is None for each in magnitudes)

    def embed_(self, hidden: torch.Tensor, tokens: torch.Tensor) -> None:
        """Adds to embeddings `[n, hidden]` of tokens `[n]`, in place."""
        for table, up in self.embedding:
            rows = table.index_select(0, tokens)
            hidden.add_(rows if up is None else rows @ up)


@dataclass(frozen=True, slots=True)
class LinearSite:
    """Where a module of a checkpoint is in a model: some columns of a layer's result."""

    linear: Linear
    start: int  # first column
    size: int
    inputs: int
    outputs: int  # columns of the whole result


@dataclass(frozen=True, slots=True)
class EmbeddingSite:
    """The embedding of a model."""

    embed: Callable[[torch.Tensor], torch.Tensor]  # [n, hidden] of tokens [n]
    tokens: int
    hidden: int


class AdapterRows:
    """Which rows of a batch go through which adapter.

    Costs two products a layer for each different adapter, however many rows have it.
    """

    def __init__(
        self,
        owners: Int32,
        adapters: Mapping[int, Adapter],
        device: torch.device,
        outputs: Int64 | None = None,
    ) -> None:
        """Describes a batch: the adapter of each row `[t]`, a key of `adapters` or a negative
        number for none, and the rows that the last layer goes on with, all by default.
        """
        self._owners = owners
        self._outputs = outputs
        self._adapters = adapters
        self._device = device
        self._parts: list[tuple[Adapter, torch.Tensor | None]] = []
        for number in np.unique(owners[owners >= 0]).tolist():
            rows = np.flatnonzero(owners == number)
            index = None if rows.size == owners.size else upload(rows, device)
            self._parts.append((adapters[number], index))

    def of_outputs(self) -> AdapterRows:
        """Those of the rows that the last layer goes on with: known on the host, nothing waits."""
        if self._outputs is None:
            return self
        return AdapterRows(self._owners[self._outputs], self._adapters, self._device)

    def select(self, rows: torch.Tensor) -> AdapterRows:
        """The same for some rows `[n]`, in this order. The host waits for them."""
        return AdapterRows(self._owners[rows.cpu().numpy()], self._adapters, self._device)

    def reach(self, *layers: Linear) -> bool:
        """True if one of the layers gets an addition."""
        return any(layer in adapter.layers for adapter, _ in self._parts for layer in layers)

    def add_(self, y: torch.Tensor, x: torch.Tensor, layer: Linear) -> None:
        """Adds to what a layer has made, `y` `[t, out]` of `x` `[t, in]`, in place."""
        for adapter, rows in self._parts:
            added = adapter.layers.get(layer)
            if added is None:
                continue
            if rows is None:
                y.add_(added.of(x, layer))
            else:
                more = added.of(x.index_select(0, rows), layer)
                y.index_add_(0, rows, more.to(y.dtype))


def adapted(layer: Linear, x: torch.Tensor, adapters: AdapterRows | None) -> torch.Tensor:
    """A layer's result for `x` `[t, in]`, with what adapters add to it: `[t, out]`."""
    y = layer(x)
    if adapters is not None:
        adapters.add_(y, x, layer)
    return y
