"""The pool of embeds of one model."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device.upload import upload_index
from pie_inference.memory.zeros import zeros


class EmbedPool:
    """Hidden states `[embeds + 1, hidden]` on the device, and the position of each on the host."""

    def __init__(self, embeds: int, hidden: int, dtype: torch.dtype, device: torch.device) -> None:
        """Allocates the pool, zeroed, and one more row, `padding`: recorded steps write unused rows
        there.
        """
        self.size = self.padding = embeds
        self.hidden = zeros((embeds + 1, hidden), dtype, device)
        self.positions: NDArray[np.int32] = np.zeros(embeds, np.int32)

    def read(self, embeds: NDArray[np.int32]) -> torch.Tensor:
        """Hidden states of embeds, `[n, hidden]`."""
        return self.read_at(self._index(embeds))

    def read_at(self, index: torch.Tensor) -> torch.Tensor:
        """As `read`, of embeds that are named on the device, int32 or int64 `[n]`."""
        return self.hidden.index_select(0, index)

    def write(
        self, embeds: NDArray[np.int32], hidden: torch.Tensor, positions: NDArray[np.int32]
    ) -> None:
        """Sets hidden states and positions of embeds."""
        self.hidden.index_copy_(0, self._index(embeds), hidden)
        self.positions[embeds] = positions

    def clear(self, embeds: NDArray[np.int32]) -> None:
        """Writes zeros, at position 0."""
        if embeds.size:
            self.positions[embeds] = 0
            self.hidden.index_fill_(0, self._index(embeds), 0)

    def _index(self, embeds: NDArray[np.int32]) -> torch.Tensor:
        return upload_index(embeds, self.hidden.device)
