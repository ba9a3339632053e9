"""One model's pool of samplers: parameters, chosen tokens, and counts for penalties."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device.upload import upload, upload_index
from pie_inference.memory.zeros import zeros
from pie_inference.sampling.choose import Parameters
from pie_py.wire.plan import Float32, Int32

SAMPLERS = 4096
COUNT_MEMORY = 256 << 20  # bytes at most for the token counts of penalties
_GIVEN = 1 << 30  # bit of a count: the token occurs in the text that was given
_TIMES = _GIVEN - 1


class SamplerPool:
    """Slots of samplers. What a command asks for lies on the host, what the model computes on the
    device.

    `tokens` is the pool of tokens of which the host need not know yet: a sampler's slot holds the
    one that it chose last, for `embed_sampled` to read, or -1.
    """

    def __init__(self, vocabulary: int, device: torch.device, size: int = SAMPLERS) -> None:
        """Makes room for `size` samplers; memory for counts is allocated lazily."""
        self.size = size
        self.count_rows = min(size, max(1, COUNT_MEMORY // (4 * vocabulary)))
        self.tokens = torch.full((size,), -1, dtype=torch.int64, device=device)
        self._vocabulary = vocabulary
        self._device = device
        self._numbers: Float32 = np.zeros((size, 6), np.float32)
        self._top_k: NDArray[np.int64] = np.zeros(size, np.int64)
        self._seeds: NDArray[np.uint64] = np.zeros(size, np.uint64)
        self._rows: Int32 = np.full(size, -1, np.int32)
        self._biases: list[tuple[Int32, Float32] | None] = [None] * size
        # What a step asks of all its samplers at once.
        self._adjusting: NDArray[np.bool_] = np.zeros(size, np.bool_)  # penalties or biases
        self._drawing: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._counts: torch.Tensor | None = None  # [count_rows, vocabulary] int32

    def set(
        self,
        samplers: Int32,
        numbers: Float32,
        top_k: Int32,
        seeds: NDArray[np.uint32],
        rows: Int32,
    ) -> None:
        """Puts new samplers into slots; the parameters are those of `SetSampler`."""
        self._numbers[samplers] = numbers
        self._top_k[samplers] = top_k
        self._seeds[samplers] = seeds[:, 0] | seeds[:, 1].astype(np.uint64) << np.uint64(32)
        self._rows[samplers] = rows
        self.forget(samplers)
        for sampler in samplers.tolist():
            self._biases[sampler] = None
        self._adjusting[samplers] = rows >= 0
        self._drawing[samplers] = self.parameters(samplers, np.zeros(0, np.uint32)).drawn
        used = rows[rows >= 0]
        if used.size:
            self._count_table()[self._index(used)] = 0

    def set_bias(self, sampler: int, tokens: Int32, values: Float32) -> None:
        """Sets what is added to the logits of some distinct tokens."""
        self._biases[sampler] = (tokens, values) if tokens.size else None
        self._adjusting[sampler] = tokens.size > 0 or self._rows[sampler] >= 0

    def feed(self, samplers: Int32, tokens: Int32, generated: NDArray[np.bool_]) -> None:
        """Counts tokens `[n]` for samplers `[n]`, as generated or given; some keep no counts."""
        counted = self._rows[samplers] >= 0
        cells = self._rows[samplers].astype(np.int64) * self._vocabulary + tokens
        table = self._count_table().view(-1) if counted.any() else None
        if table is None:
            return
        fresh = self._index(cells[counted & generated])
        table.index_add_(0, fresh, torch.ones_like(fresh, dtype=torch.int32))
        given = self._index(cells[counted & ~generated])
        table[given] = table[given] | _GIVEN

    def parameters(self, samplers: Int32, steps: NDArray[np.uint32]) -> Parameters:
        """The parameters of samplers, for `choose`."""
        temperature, top_p, min_p = self._numbers[samplers, :3].T
        return Parameters(
            temperature, self._top_k[samplers], top_p, min_p, self._seeds[samplers], steps
        )

    def adjusts(self, samplers: Int32) -> bool:
        """Whether one of the samplers changes logits."""
        return bool(self._adjusting[samplers].any())

    def draws(self, samplers: Int32) -> bool:
        """Whether one of the samplers does not just take the most likely token."""
        return bool(self._drawing[samplers].any())

    def adjust(self, logits: torch.Tensor, samplers: Int32) -> None:
        """Applies biases, then penalties, to logits `[n, vocabulary]` in place.

        Repetition: of a token that occurs, a logit above 0 is divided by it and one below
            multiplied
        (Keskar et al., CTRL, 2019). Presence and frequency: taken off once, and for each time, that
        the token was generated.
        """
        biased = [i for i, sampler in enumerate(samplers.tolist()) if self._biases[sampler]]
        if biased:
            pairs = [
                pair for sampler in samplers[biased].tolist() if (pair := self._biases[sampler])
            ]
            lengths = [len(tokens) for tokens, _ in pairs]
            rows = self._index(np.repeat(biased, lengths))
            tokens = self._index(np.concatenate([tokens for tokens, _ in pairs]))
            values = upload(np.concatenate([values for _, values in pairs]), self._device)
            logits[rows, tokens] += values
        penalised = np.flatnonzero(self._rows[samplers] >= 0)
        if penalised.size:
            rows = self._index(penalised)
            counts = self._count_table()[self._index(self._rows[samplers[penalised]])]
            numbers = upload(self._numbers[samplers[penalised]], self._device)
            repetition, presence, frequency = numbers[:, 3:].unbind(1)
            values = logits[rows]
            factor = repetition[:, None]
            repeated = torch.where(values > 0, values / factor, values * factor)
            values = torch.where(counts != 0, repeated, values)
            times = counts & _TIMES
            values -= presence[:, None] * (times > 0) + frequency[:, None] * times
            logits[rows] = values

    def note(self, samplers: Int32, tokens: torch.Tensor) -> None:
        """Keeps, and counts, what samplers have chosen: `[n]`, -1 for nothing."""
        self.tokens.index_copy_(0, self._index(samplers), tokens)
        self.count(samplers, tokens)

    def count(self, samplers: Int32, tokens: torch.Tensor) -> None:
        """Counts what samplers have chosen, `[n]`, for penalties."""
        if self._counts is None:
            return
        counted = np.flatnonzero(self._rows[samplers] >= 0)
        if counted.size:
            new = tokens[self._index(counted)]
            rows = self._index(self._rows[samplers[counted]])
            cells = rows * self._vocabulary + new.clamp(min=0)
            self._count_table().view(-1).index_add_(0, cells, (new >= 0).to(torch.int32))

    def forget(self, samplers: Int32) -> None:
        """Forgets what samplers have chosen last."""
        if samplers.size:
            self.tokens[self._index(samplers)] = -1

    def _count_table(self) -> torch.Tensor:
        if self._counts is None:
            shape = (self.count_rows, self._vocabulary)
            self._counts = zeros(shape, torch.int32, self._device)
        return self._counts

    def _index(self, array: NDArray[np.integer[Any]]) -> torch.Tensor:
        return upload_index(array, self._device)
