"""The memory of sampling: counts of a text's tokens, its newest ones, and saved logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import upload_index, zeros
from pie_py.device_programs.language import MOST_NEWEST
from pie_py.wire.plan import LOGIT_ROWS

GIVEN = 1 << 30  # bit of a count: the token occurs in the text that was given
TIMES = GIVEN - 1
_Rows = NDArray[np.integer[Any]]


class RememberedTokens:
    """A row of counts and a ring of tokens for each sampler that needs them.

    A token's place is its number in the text, so a text that is cut back and goes on
    overwrites what was cut off. Both tables are allocated with their first use.
    """

    def __init__(self, rows: int, vocabulary: int, device: torch.device) -> None:
        self.rows = rows
        self._vocabulary = vocabulary
        self._device = device
        self._counts: torch.Tensor | None = None  # [rows, vocabulary] int32
        self._newest: torch.Tensor | None = None  # [rows, MOST_NEWEST] int32, -1: no token

    def forget(self, rows: _Rows) -> None:
        """Begins new texts."""
        for table, empty in ((self._counts, 0), (self._newest, -1)):
            if table is not None and rows.size:
                table[self._index(rows)] = empty

    def counts(self, rows: _Rows) -> torch.Tensor:
        """How often each token was generated, with the bit `GIVEN`: int32 `[n, vocabulary]`."""
        return self._count_table()[self._index(rows)]

    def count_given(self, rows: _Rows, tokens: _Rows) -> None:
        """Notes tokens `[n]` of texts that were given."""
        cells = self._index(rows.astype(np.int64) * self._vocabulary + tokens)
        table = self._count_table().view(-1)
        table[cells] = table[cells] | GIVEN

    def count(self, rows: _Rows, tokens: torch.Tensor) -> None:
        """Counts generated tokens, int64 `[n]`; -1 is none."""
        cells = self._index(rows) * self._vocabulary + tokens.clamp(min=0)
        self._count_table().view(-1).index_add_(0, cells, (tokens >= 0).to(torch.int32))

    def note(self, rows: _Rows, places: _Rows, tokens: torch.Tensor) -> None:
        """Notes tokens, int64 `[n]`, at their places in their texts."""
        cells = self._index(rows.astype(np.int64) * MOST_NEWEST + places % MOST_NEWEST)
        self._newest_table().view(-1).index_copy_(0, cells, tokens.to(torch.int32))

    def newest(self, rows: _Rows, lengths: _Rows, most: int) -> torch.Tensor:
        """The last tokens of texts of such lengths, int64 `[n, most]`; -1 before their beginning.
        No more than `MOST_NEWEST` are remembered.
        """
        table = self._newest_table()
        places = self._index(lengths - most)[:, None] + torch.arange(most, device=self._device)
        cells = self._index(rows)[:, None] * MOST_NEWEST + (places & (MOST_NEWEST - 1))
        found = table.view(-1).index_select(0, cells.view(-1)).to(torch.int64).view(cells.shape)
        return found.masked_fill_(places < 0, -1)

    def _count_table(self) -> torch.Tensor:
        if self._counts is None:
            self._counts = zeros((self.rows, self._vocabulary), torch.int32, self._device)
        return self._counts

    def _newest_table(self) -> torch.Tensor:
        if self._newest is None:
            self._newest = zeros((self.rows, MOST_NEWEST), torch.int32, self._device)
        return self._newest

    def _index(self, array: _Rows) -> torch.Tensor:
        return upload_index(array, self._device)


class SavedLogits:
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
