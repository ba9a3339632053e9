"""Rotary position embedding (Su et al. 2021)."""

from __future__ import annotations

import torch

from pie_inference.layers.kernels import Kernels

Angles = tuple[torch.Tensor, ...]
TABULATED = 1 << 17  # positions of which a table is kept; models that reach further compute theirs


class Rope:
    """Rotates queries and keys by their positions.

    Dimension `i` of the first half and `i` of the second half of a head form a plane, which turns
    by the position's angle `i`. Interleaved, a plane is a dimension and the next. Where there are
    fewer angles than planes, only a head's first dimensions turn.
    """

    def __init__(
        self,
        frequencies: torch.Tensor,
        amplitude: float,
        positions: int,
        dtype: torch.dtype,
        device: torch.device,
        interleaved: bool = False,
    ) -> None:
        """Takes what a position turns further than the one before, `[head_dim / 2]`, float32
        radians, and how many positions are served. A rotated vector's length is multiplied by the
        amplitude, 1 but for YaRN.
        """
        self._half = frequencies.shape[0]
        self._frequencies, self._positions = frequencies, positions
        self._amplitude = amplitude
        self._dtype, self._device = dtype, device
        self._interleaved = interleaved
        self._kernel = Kernels().rotate
        self._table = self._whole_table()

    def use(self, kernels: Kernels) -> None:
        """Computes with a device's kernels from now on."""
        if kernels.rotate is not None:
            self._kernel = kernels.rotate
            self._table = self._whole_table()

    def _whole_table(self) -> torch.Tensor | None:
        if self._positions > TABULATED:
            self._frequencies = self._frequencies.to(self._device)
            return None
        positions = torch.arange(self._positions, dtype=torch.float32)
        return self._tabulated(torch.outer(positions, self._frequencies))

    def _tabulated(self, angles: torch.Tensor) -> torch.Tensor:
        """Cosines and sines of angles `[n, planes]`.

        For a kernel `[n, head_dim]`, float32; else `[n, 2, 1, head_dim]` for the result
        x * cos + swap_halves(x) * sin, the sign of the swapped halves kept in the table.
        """
        cos, sin = angles.cos() * self._amplitude, angles.sin() * self._amplitude
        if self._kernel is not None:
            return torch.cat([cos, sin], -1).to(self._device)
        halves = [torch.stack([cos, cos]), torch.stack([-sin, sin])]  # [2, n, planes]
        order = (1, 2, 0) if self._interleaved else (1, 0, 2)
        table = torch.stack([half.permute(order).flatten(1) for half in halves], dim=1)
        return table.unsqueeze(2).to(device=self._device, dtype=self._dtype)

    def angles(self, positions: torch.Tensor) -> Angles:
        """The angles that `rotate_` needs of positions `[t]`, once a forward.

        Cosines and signed sines, each `[t, 1, head_dim]`; for a kernel that looks them up the
        positions and the table.
        """
        if self._table is None:
            table = self._tabulated(torch.outer(positions.float(), self._frequencies))
            if self._kernel is not None:
                return torch.arange(len(positions), device=self._device), table
            return table.unbind(1)
        if self._kernel is not None:
            return positions, self._table
        return self._table.index_select(0, positions).unbind(1)

    @staticmethod
    def turned(heads: torch.Tensor, angles: torch.Tensor, interleaved: bool) -> torch.Tensor:
        """Heads `[t, heads, head_dim]`, float32, turned by angles `[t, planes]` more."""
        planes = angles.shape[1]
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        shape = (planes, 2) if interleaved else (2, planes)
        parts = heads[..., : 2 * planes].reshape(*heads.shape[:-1], *shape)
        x, y = parts.unbind(-1 if interleaved else -2)
        both = torch.stack([x * cos - y * sin, y * cos + x * sin], -1 if interleaved else -2)
        return torch.cat([both.flatten(-2), heads[..., 2 * planes :]], -1)

    def rotate_(self, heads: torch.Tensor, *angles: torch.Tensor) -> None:
        """Rotates heads `[t, heads, head_dim]` in place, of each the dimensions that turn."""
        if self._kernel is not None:
            self._kernel(heads, *angles)
            return
        cos, sin = angles
        heads = heads[..., : 2 * self._half]
        if self._interleaved:
            pairs = heads.reshape(*heads.shape[:-1], self._half, 2)
            swapped = pairs.flip(-1).flatten(-2)
        else:
            swapped = heads.roll(self._half, -1)
        heads.mul_(cos).addcmul_(swapped, sin)
