"""Rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

import torch


class Rope:
    """Rotates queries and keys by their positions.

    Dimension `i` of the first half and `i` of the second half of a head form a plane, which turns by
    the position's angle `i`.
    """

    def __init__(
        self, angles: torch.Tensor, amplitude: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Tabulates cosines and sines.

        Args:
            angles: `[positions, head_dim / 2]`, float32, radians.
            amplitude: what a rotated vector's length is multiplied by; 1 but for YaRN.
            dtype: of the heads.
            device: of the heads.
        """
        cos, sin = angles.cos() * amplitude, angles.sin() * amplitude
        # x * cos + swap_halves(x) * sin, the sign of the swapped halves kept in the table.
        table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], dim=1)
        self._table = table.unsqueeze(2).to(
            device=device, dtype=dtype
        )  # [positions, 2, 1, head_dim]
        self._half = angles.shape[1]

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and signed sines of positions `[t]`, each `[t, 1, head_dim]`."""
        cos, sin = self._table.index_select(0, positions).unbind(1)
        return cos, sin

    def rotate_(self, heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Rotates heads `[t, heads, head_dim]` in place."""
        swapped = heads.roll(self._half, -1)
        heads.mul_(cos).addcmul_(swapped, sin)
