"""The angle by which each position turns, with the scalings that make a model reach further."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from pie_inference.errors import LoadError

MAX_POSITIONS = 1 << 24  # more is a mistake: float32 does not tell them apart


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of some layers, as config.json describes it."""

    head_dim: int  # the dimensions that turn: all of a head, or the first of them
    base: float  # `rope_theta`
    kind: str  # "default", or the scaling
    parameters: Mapping[str, Any]  # of the scaling
    trained: int  # `max_position_embeddings`: positions without scaling, unless the parameters say
    longest: int | None = None  # positions to serve, if fewer than the model could

    @property
    def positions(self) -> int:
        """Positions that are served: as trained, more if scaled, or the fewer that are wanted."""
        found = self.trained
        if self.kind == "dynamic":
            found = int(self.trained * self.number("factor"))
        elif self.kind == "yarn":
            found = max(self.trained, int(self._original * self._yarn_factor))
        return found if self.longest is None else min(found, self.longest)

    def turning(self) -> tuple[torch.Tensor, float]:
        """The turn from a position to the next, `[head_dim / 2]`, float32 radians, and
        the amplitude. Raises `LoadError` if the scaling lacks a parameter.
        """
        return SCALINGS[self.kind](self)

    def frequencies(self) -> torch.Tensor:
        """The first of these."""
        return self.turning()[0]

    def number(self, name: str, default: float | None = None) -> float:
        """A parameter of the scaling. Raises `LoadError` if it lacks and has no default, or is no
        number.
        """
        value = self.parameters.get(name)
        if value is None:
            value = default
        if value is None:
            raise LoadError(f"config.json: rope scaling {self.kind!r} lacks the parameter {name!r}")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise LoadError(
                f"config.json: rope scaling {self.kind!r}: {name!r} is {value!r}, not a number"
            )
        return float(value)

    def factors(self, name: str) -> torch.Tensor:
        """The divisor of each frequency, `[head_dim / 2]`, near (`short`) or far (`long`).
        Raises `LoadError` if they lack, or are not as many numbers.
        """
        values = self.parameters.get(f"{name}_factor")
        if not isinstance(values, list) or len(values) != self.head_dim // 2:
            raise LoadError(
                f"config.json: rope scaling {self.kind!r}: '{name}_factor' is no list of"
                f" {self.head_dim // 2} numbers"
            )
        return torch.tensor(values, dtype=torch.float32)

    def plain(self) -> torch.Tensor:
        """Frequencies `[head_dim / 2]` without scaling."""
        return 1.0 / (self.base**self._exponents)

    @property
    def _exponents(self) -> torch.Tensor:
        return torch.arange(0, self.head_dim, 2, dtype=torch.int64).float() / self.head_dim

    @property
    def _original(self) -> float:
        return self.number("original_max_position_embeddings", self.trained)

    @property
    def _yarn_factor(self) -> float:
        return self.number("factor", self.trained / self._original)


def rope_spec(
    parameters: Mapping[str, Any],
    *,
    head_dim: int,
    base: float,
    trained: int,
    longest: int | None = None,
) -> RopeSpec:
    """Reads `rope_parameters` (transformers 5) or `rope_scaling` (before), which may be empty.
    `base` is for parameters that name none; `trained` and `longest` are those of `RopeSpec`. Raises
    `LoadError` for a scaling that is not supported, or one whose parameters lack.
    """
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise LoadError(
            f"config.json: rope scaling {kind!r} is not supported (supported:"
            f" {', '.join(SCALINGS)})"
        )
    spec = RopeSpec(head_dim, base, kind, parameters, trained, longest)
    turning = int(head_dim * spec.number("partial_rotary_factor", 1.0))
    if not 0 < turning <= head_dim or turning % 2:
        raise LoadError(
            f"config.json: partial_rotary_factor turns {turning} of a head's {head_dim} dimensions,"
            " not an even part of them"
        )
    spec = replace(spec, head_dim=turning, base=spec.number("rope_theta", base))
    try:  # before the weights are read
        furthest = spec.frequencies() * spec.positions
        sound = 0 < spec.positions <= MAX_POSITIONS and bool(furthest.isfinite().all())
    except (ArithmeticError, ValueError, TypeError):
        sound = False
    if not sound:
        raise LoadError(
            f"config.json: rope parameters without finite angles for up to {MAX_POSITIONS:,}"
            f" positions: {dict(parameters)}, max_position_embeddings {trained}"
        )
    return spec


def _default(spec: RopeSpec) -> tuple[torch.Tensor, float]:
    return spec.plain(), 1.0


def _linear(spec: RopeSpec) -> tuple[torch.Tensor, float]:
    """Position interpolation (Chen et al. 2023)."""
    return spec.plain() / spec.number("factor"), 1.0


def _dynamic(spec: RopeSpec) -> tuple[torch.Tensor, float]:
    """Dynamic NTK: the base grows with the length, beyond the trained one.

    The length is the longest that is served, for all texts: a score depends on the distance alone
    only while all keys of a text turn alike, and keys stay as they are while a text grows.
    """
    factor, dim = spec.number("factor"), spec.head_dim
    length = max(spec.positions, spec.trained)
    growth = (factor * length / spec.trained - (factor - 1)) ** (dim / (dim - 2))
    return 1.0 / ((spec.base * growth) ** spec._exponents), 1.0


def _yarn(spec: RopeSpec) -> tuple[torch.Tensor, float]:
    """YaRN (Peng et al. 2023): dimensions that turn seldom are interpolated, the others kept."""
    dim, factor, trained = spec.head_dim, spec._yarn_factor, spec._original

    def dimension(turns: float) -> float:
        """The dimension that turns so many times within the trained length."""
        return dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(spec.base))

    low = dimension(spec.number("beta_fast", 32.0))
    high = dimension(spec.number("beta_slow", 1.0))
    if spec.parameters.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    plain = spec.plain()
    return plain / factor * ramp + plain * (1 - ramp), _yarn_amplitude(spec, factor)


def _yarn_amplitude(spec: RopeSpec, factor: float) -> float:
    if spec.parameters.get("attention_factor") is not None:
        return spec.number("attention_factor")

    def of(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    scale, all_dimensions = spec.number("mscale", 0.0), spec.number("mscale_all_dim", 0.0)
    if scale and all_dimensions:
        return of(scale) / of(all_dimensions)
    return of(1.0)


def _llama3(spec: RopeSpec) -> tuple[torch.Tensor, float]:
    """Llama 3.1: low frequencies are divided by `factor`, high ones kept, those between blended."""
    frequencies = spec.plain()
    factor = spec.number("factor")
    low, high = spec.number("low_freq_factor"), spec.number("high_freq_factor")
    wavelengths = 2 * math.pi / frequencies
    blend = ((spec._original / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies, 1.0


def _longrope(spec: RopeSpec) -> tuple[torch.Tensor, float]:
    """LongRoPE (Ding et al. 2024): factors of each frequency, others beyond the trained length.

    As in `_dynamic`, the longest text that is served decides which.
    """
    original = spec._original
    factor = spec.number("factor", spec.trained / original)
    amplitude = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    near, far = spec.factors("short"), spec.factors("long")
    frequencies = spec.plain() / (far if spec.positions > original else near)
    return frequencies, spec.number("attention_factor", amplitude)


# Frequencies `[head_dim / 2]`, and the amplitude.
SCALINGS: dict[str, Callable[[RopeSpec], tuple[torch.Tensor, float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
