"""A model's layers, made from its tensors."""

from __future__ import annotations

from collections.abc import MutableMapping

import torch

from pie_inference.layers.layer_norm import LayerNorm
from pie_inference.layers.linear import Int8Linear, Linear, linear, worth_int8
from pie_inference.layers.lora import LinearSite
from pie_inference.layers.rms_norm import RmsNorm

Norm = RmsNorm | LayerNorm


class Weights:
    """Takes tensors out of a checkpoint's, so that no second copy of them stays."""

    def __init__(
        self,
        tensors: MutableMapping[str, torch.Tensor],
        epsilon: float,
        offset: float,
        dtype: torch.dtype,
        layer_norm: bool = False,
    ) -> None:
        """Takes the tensors, of norms the epsilon and what is added to their weights, the dtype to
        which int8 weights are widened, and whether norms are layer norms.
        """
        self._tensors = tensors
        self._epsilon, self._offset = epsilon, offset
        self._dtype, self._layer_norm = dtype, layer_norm
        self.sites: dict[str, LinearSite] = {}  # what adapters may change

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor that must be there."""
        found, scale = self._tensors.pop(name), self._tensors.pop(f"{name}_scale", None)
        return found if scale is None else (found * scale).to(self._dtype)

    def optional(self, name: str) -> torch.Tensor | None:
        """A tensor, or None."""
        return self.tensor(name) if name in self._tensors else None

    def norm(self, name: str, epsilon: float | None = None, offset: float | None = None) -> Norm:
        """The norm of that name; of another epsilon or offset, if one is given."""
        if self._layer_norm:
            bias = self.optional(f"{name}.bias")
            return LayerNorm(self.tensor(f"{name}.weight"), bias, self._epsilon)
        return RmsNorm(
            self.tensor(f"{name}.weight"),
            self._epsilon if epsilon is None else epsilon,
            self._offset if offset is None else offset,
        )

    def linear(
        self,
        *names: str,
        into: torch.Tensor | None = None,
        bias_into: torch.Tensor | None = None,
    ) -> Linear:
        """One product in the place of several that have the same input. Weights `[out, in]` and
        biases `[out]` are put where there is a place for them.
        """
        scale = self._int8_scale(names)
        take = self.tensor if scale is None else self._tensors.pop
        parts = [take(f"{name}.weight") for name in names]
        biases = [self.optional(f"{name}.bias") for name in names]
        bias = None
        if any(found is not None for found in biases):
            each = zip(parts, biases, strict=True)
            whole = [
                part.new_zeros(len(part), dtype=self._dtype) if own is None else own
                for part, own in each
            ]
            bias = torch.cat(whole, out=bias_into)
        weight = torch.cat(parts, out=into)
        made = linear(weight, bias) if scale is None else Int8Linear(weight, scale, bias)
        start, total = 0, sum(len(part) for part in parts)
        for name, part in zip(names, parts, strict=True):
            self.sites[name] = LinearSite(made, start, len(part), part.shape[1], total)
            start += len(part)
        return made

    def _int8_scale(self, names: tuple[str, ...]) -> torch.Tensor | None:
        """The scales `[out]`, taken, of a product in int8; None unless all weights have some."""
        weights = [f"{name}.weight" for name in names]
        if not all(f"{name}_scale" in self._tensors for name in weights):
            return None
        if not worth_int8(sum(self._tensors[name].numel() for name in weights)):
            return None
        return torch.cat([self._tensors.pop(f"{name}_scale") for name in weights]).view(-1)
