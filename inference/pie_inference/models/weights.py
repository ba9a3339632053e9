"""A model's layers, made from its tensors."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import NamedTuple

import torch

from pie_inference.layers.fixed_rows import FixedRows
from pie_inference.layers.grouped import GroupedLinear, Packed, as_it_is, multiplies_bfloat16
from pie_inference.layers.linear import Linear, linear
from pie_inference.layers.lora import LinearSite
from pie_inference.layers.norms import RmsNorm


class Place(NamedTuple):
    """Where a tensor of a checkpoint is in a model that can get another one."""

    shape: tuple[int, ...]
    write: Callable[[int, torch.Tensor], None]  # puts rows where others were, from one on


class Tensors(dict[str, torch.Tensor]):
    """A checkpoint's tensors by name, and those that are kept in few bits instead."""

    def __init__(self) -> None:
        """Has none."""
        super().__init__()
        self.packed: dict[str, Packed] = {}


class Table:
    """The rows of a weight `[n, in]`, which may also be that of a product."""

    def __init__(
        self, weight: torch.Tensor | Packed, dtype: torch.dtype, fixed: bool = False
    ) -> None:
        """Takes the weight, the dtype of rows, and whether a product's are to be independent."""
        self.weight, self._dtype, self._fixed = weight, dtype, fixed

    def rows(self, wanted: torch.Tensor) -> torch.Tensor:
        """Those of numbers `[m]`, int64: `[m, in]`."""
        if isinstance(self.weight, Packed):
            return self.weight.rows(wanted).to(self._dtype)
        return self.weight.index_select(0, wanted)

    def write(self, start: int, rows: torch.Tensor) -> None:
        """Puts rows `[n, in]` where others were."""
        if isinstance(self.weight, Packed):
            self.weight.write(start, rows)
        else:
            self.weight[start : start + len(rows)] = rows

    @property
    def writable(self) -> bool:
        """True if it may be written to."""
        return isinstance(self.weight, torch.Tensor) or self.weight.bits == 16

    def product(self) -> Linear:
        """That with the weight. What it packs, rows are taken from as well."""
        if isinstance(self.weight, torch.Tensor) and multiplies_bfloat16(self.weight):
            self.weight = as_it_is(self.weight)
        if isinstance(self.weight, Packed):
            return GroupedLinear([self.weight])
        return product(self.weight, None, self._fixed)

    def part(self, count: int, number: int) -> Table:
        """One of so many parts of a weight, which is not packed."""
        assert isinstance(self.weight, torch.Tensor)
        return Table(self.weight.chunk(count, 0)[number], self._dtype)


def product(weight: torch.Tensor, bias: torch.Tensor | None, fixed: bool) -> Linear:
    """That with a weight, whose rows are independent if `fixed`."""
    if multiplies_bfloat16(weight):
        return GroupedLinear([as_it_is(weight)], bias)
    made = linear(weight, bias)
    return FixedRows(made, weight.shape[1], weight.dtype) if fixed else made


class Weights:
    """Takes tensors out of a checkpoint's, so that no second copy of them stays."""

    def __init__(
        self,
        tensors: MutableMapping[str, torch.Tensor],
        epsilon: float,
        offset: float,
        dtype: torch.dtype,
        fixed: bool = False,
    ) -> None:
        """Takes the tensors, of norms the epsilon and what is added to their weights, the dtype to
        which weights in few bits are widened, and whether the rows of products are to be
        independent (`fixed_rows.py`).
        """
        self._tensors = tensors
        self._epsilon, self._offset = epsilon, offset
        self._dtype, self._fixed = dtype, fixed
        self._packed = tensors.packed if isinstance(tensors, Tensors) else {}
        self.few_bits = sorted({weight.bits for weight in self._packed.values()})
        self.norms: list[RmsNorm] = []  # that were made
        self.sites: dict[str, LinearSite] = {}  # what adapters may change
        self.places: dict[str, Place] = {}  # what may be replaced

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor that must be there."""
        if name in self._packed:
            return self._packed.pop(name).rows().to(self._dtype)
        return self._tensors.pop(name)

    def optional(self, name: str) -> torch.Tensor | None:
        """A tensor, or None."""
        return self.tensor(name) if name in self._tensors else None

    def table(self, name: str) -> Table | None:
        """A weight whose rows are taken, or None."""
        if name in self._packed:
            return Table(self._packed.pop(name), self._dtype)
        found = self.optional(name)
        return None if found is None else Table(found, self._dtype, self._fixed)

    def norm(self, name: str, epsilon: float | None = None, offset: float | None = None) -> RmsNorm:
        """The norm of that name; of another epsilon or offset, if one is given."""
        weight = self.tensor(f"{name}.weight")
        made = RmsNorm(
            weight,
            self._epsilon if epsilon is None else epsilon,
            self._offset if offset is None else offset,
        )
        self.norms.append(made)
        self.places[f"{name}.weight"] = Place(tuple(weight.shape), made.write)
        return made

    def linear(
        self,
        *names: str,
        into: torch.Tensor | None = None,
        bias_into: torch.Tensor | None = None,
    ) -> Linear:
        """One product in the place of several that have the same input. Weights `[out, in]` and
        biases `[out]` are put where there is a place for them.
        """
        weights = [f"{name}.weight" for name in names]
        if all(name in self._packed for name in weights):
            return self._grouped(names, [self._packed.pop(name) for name in weights])
        parts = [self.tensor(name) for name in weights]
        bias = self._bias(names, [len(part) for part in parts], bias_into)
        made = product(torch.cat(parts, out=into), bias, self._fixed)
        return self._placed(made, names, [(len(part), part.shape[1]) for part in parts])

    def _grouped(self, names: tuple[str, ...], parts: list[Packed]) -> Linear:
        made = GroupedLinear(parts, self._bias(names, [part.outputs for part in parts]))
        return self._placed(made, names, [(part.outputs, part.inputs) for part in parts])

    def _bias(
        self, names: tuple[str, ...], sizes: list[int], into: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """The biases, side by side; None if there are none."""
        biases = [self.optional(f"{name}.bias") for name in names]
        like = next((found for found in biases if found is not None), None)
        if like is None:
            return None
        each = zip(biases, sizes, strict=True)
        return torch.cat([like.new_zeros(n) if own is None else own for own, n in each], out=into)

    def _placed(self, made: Linear, names: tuple[str, ...], sizes: list[tuple[int, int]]) -> Linear:
        start, total = 0, sum(outputs for outputs, _ in sizes)
        for name, (outputs, inputs) in zip(names, sizes, strict=True):
            self.sites[name] = LinearSite(made, start, outputs, inputs, total)
            if made.writable:
                write = partial(_shifted, made.write, start)
                self.places[f"{name}.weight"] = Place((outputs, inputs), write)
                if made.has_bias:
                    write = partial(_shifted, made.write_bias, start)
                    self.places[f"{name}.bias"] = Place((outputs,), write)
            start += outputs
        return made


def _shifted(
    write: Callable[[int, torch.Tensor], None], first: int, start: int, rows: torch.Tensor
) -> None:
    write(first + start, rows)
