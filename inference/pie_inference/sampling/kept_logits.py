"""Rows of logits that choices mix into those of their own model."""

from __future__ import annotations

import torch

from pie_py.wire.operations import LOGIT_ROWS


class KeptLogits:
    """Float32 rows, which all models of a worker share; allocated with the first use."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        """Takes the largest vocabulary, and where the rows are to lie."""
        self._shape = (LOGIT_ROWS, vocabulary)
        self._device = device
        self._rows: torch.Tensor | None = None

    def put(self, rows: torch.Tensor, logits: torch.Tensor) -> None:
        """Keeps logits `[n, vocabulary of their model]` in rows `[n]`."""
        table = self._table()
        table[rows.to(self._device), : logits.shape[1]] = logits.to(self._device, torch.float32)

    def read(self, rows: torch.Tensor, vocabulary: int) -> torch.Tensor:
        """The first logits of rows `[n]`, on the device of the row numbers."""
        return self._table()[rows.to(self._device), :vocabulary].to(rows.device)

    def _table(self) -> torch.Tensor:
        if self._rows is None:
            self._rows = torch.full(self._shape, torch.nan, device=self._device)
        return self._rows
