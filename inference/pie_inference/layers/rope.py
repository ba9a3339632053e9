"""Rotary position embedding (Su et al. 2021), with the scalings that Llama checkpoints use."""

from __future__ import annotations

import math
from typing import Any

import torch

from pie_inference.errors import LoadError


class Rope:
    """Rotates queries and keys by their positions.

    Dimension `i` of the first half and `i` of the second half of a head form a plane, which turns by
    `position * frequency[i]`.
    """

    def __init__(
        self,
        frequencies: torch.Tensor,
        max_position: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Tabulates cosines and sines of positions `0 .. max_position - 1`; frequencies are float32."""
        angles = torch.outer(torch.arange(max_position, dtype=torch.float32), frequencies)
        cos, sin = angles.cos(), angles.sin()
        # x * cos + swap_halves(x) * sin, the sign of the swapped halves kept in the table.
        table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], dim=1)
        self._table = table.unsqueeze(2).to(
            device=device, dtype=dtype
        )  # [positions, 2, 1, head_dim]
        self._half = frequencies.shape[0]

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines of positions `[t]`, each `[t, 1, head_dim]`."""
        cos, sin = self._table.index_select(0, positions).unbind(1)
        return cos, sin

    def rotate_(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotates heads `[t, heads, head_dim]` in place."""
        swapped = heads.roll(self._half, -1)
        heads.mul_(cos).addcmul_(swapped, sin)


def rope_frequencies(config: dict[str, Any], head_dim: int) -> torch.Tensor:
    """Frequencies `[head_dim / 2]`, float32, of a Hugging Face config.

    Raises:
        LoadError: for a kind of scaling that is not supported, or one whose parameters lack.
    """
    # Transformers 5 writes `rope_parameters`; earlier ones `rope_theta` and `rope_scaling`.
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (theta**exponents)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    try:
        match kind:
            case "default":
                return frequencies
            case "linear":
                return frequencies / float(parameters["factor"])
            case "llama3":
                return _llama3(frequencies, parameters, config)
    except KeyError as error:
        raise LoadError(f"config.json: rope scaling {kind!r} lacks the parameter {error}") from None
    raise LoadError(
        f"config.json: rope scaling {kind!r} is not supported (default, linear and llama3 are)"
    )


def _llama3(
    frequencies: torch.Tensor, parameters: dict[str, Any], config: dict[str, Any]
) -> torch.Tensor:
    """Llama 3.1: low frequencies are divided by `factor`, high ones kept, those between blended."""
    factor = float(parameters["factor"])
    low, high = float(parameters["low_freq_factor"]), float(parameters["high_freq_factor"])
    trained = float(
        parameters.get("original_max_position_embeddings") or config["max_position_embeddings"]
    )
    wavelengths = 2 * math.pi / frequencies
    blend = ((trained / wavelengths - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies
