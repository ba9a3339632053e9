"""The operations on logits before a token is chosen, each a function; `OPERATIONS` is the table.

A function takes float32 logits `[n, vocabulary]`, of rows that all have the operation, and what it
may know of them, and returns others; minus infinity is what is ruled out. None asks the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import upload, upload_index
from pie_inference.sampling.pool import Choices, SamplerPool, allowed
from pie_inference.sampling.remembered import TIMES
from pie_py.wire.operations import Operation
from pie_py.wire.plan import Float32

_NONE = -torch.inf


class Known:
    """What is known of rows with the same operations, and the arguments of one of these."""

    def __init__(self, pool: SamplerPool, choices: Choices, rows: NDArray[np.intp]) -> None:
        self._pool = pool
        self._choices = choices
        self._rows = rows
        self._samplers = choices.samplers[rows]
        self._programs = [pool.programs[sampler] for sampler in self._samplers.tolist()]
        self._counts: torch.Tensor | None = None
        self.place = 0  # of the operation among those of the rows

    def argument(self, index: int) -> torch.Tensor:
        """Float32 `[n, 1]`."""
        return self._column(self._arguments(index))

    def bias(self, values: torch.Tensor) -> torch.Tensor:
        """The logits, with the numbers of the operation's tokens added in place."""
        pairs = [program.tokens[self.place] for program in self._programs]
        lengths = [len(tokens) for tokens, _ in pairs]
        device = self._pool.device
        rows = upload_index(np.repeat(np.arange(len(pairs)), lengths), device)
        tokens = upload_index(np.concatenate([tokens for tokens, _ in pairs]), device)
        added = upload(np.concatenate([numbers for _, numbers in pairs]), device)
        values[rows, tokens] += added
        return values

    def tokens(self) -> torch.Tensor:
        """Which tokens the operation has: bool `[n, vocabulary]`."""
        found = np.zeros((len(self._rows), self._pool.vocabulary), np.bool_)
        for row, program in zip(found, self._programs, strict=True):
            row[program.tokens[self.place][0]] = True
        return upload(found, self._pool.device)

    def counts(self) -> torch.Tensor:
        """`RememberedTokens.counts`."""
        if self._counts is None:
            self._counts = self._pool.remembered.counts(self._pool.rows[self._samplers])
        return self._counts

    def allowed(self) -> torch.Tensor | None:
        """What the choices' masks allow: bool `[n, vocabulary]`; None if no row has one."""
        masked = self._choices.masked[self._rows]
        if not (masked >= 0).any():
            return None
        words = np.full((len(masked), self._choices.masks.shape[1]), 0xFFFFFFFF, np.uint32)
        words[masked >= 0] = self._choices.masks[masked[masked >= 0]]
        return allowed(words, self._pool)

    def _arguments(self, index: int) -> Float32:
        return np.array([p.arguments[self.place, index] for p in self._programs], np.float32)

    def _column(self, numbers: NDArray[Any]) -> torch.Tensor:
        return upload(np.ascontiguousarray(numbers), self._pool.device)[:, None]


def adjust(pool: SamplerPool, logits: torch.Tensor, choices: Choices) -> None:
    """Does to float32 logits `[n, vocabulary]`, in place, what their samplers do."""
    alike: dict[tuple[Operation, ...], list[int]] = {}
    for i, sampler in enumerate(choices.samplers.tolist()):
        alike.setdefault(pool.programs[sampler].operations, []).append(i)
    for operations, rows in alike.items():
        if not operations:
            continue
        index = None if len(rows) == len(logits) else upload_index(np.array(rows), pool.device)
        values = logits if index is None else logits[index]
        known = Known(pool, choices, np.array(rows))
        for place, operation in enumerate(operations):
            known.place = place
            values = OPERATIONS[operation](values, known)
        if index is None:
            logits.copy_(values)
        else:
            logits[index] = values


def _logit_bias(values: torch.Tensor, known: Known) -> torch.Tensor:
    return known.bias(values)


def _allowed_tokens(values: torch.Tensor, known: Known) -> torch.Tensor:
    return values.masked_fill(~known.tokens(), _NONE)


def _repetition_penalty(values: torch.Tensor, known: Known) -> torch.Tensor:
    """Of a token that occurs, a logit above 0 is divided, one below multiplied (CTRL, 2019)."""
    factor = known.argument(0)
    repeated = torch.where(values > 0, values / factor, values * factor)
    return torch.where(known.counts() != 0, repeated, values)


def _presence_penalty(values: torch.Tensor, known: Known) -> torch.Tensor:
    return values - known.argument(0) * (known.counts() & TIMES > 0)


def _frequency_penalty(values: torch.Tensor, known: Known) -> torch.Tensor:
    return values - known.argument(0) * (known.counts() & TIMES)


def _mask(values: torch.Tensor, known: Known) -> torch.Tensor:
    allowed = known.allowed()
    return values if allowed is None else values.masked_fill(~allowed, _NONE)


def _temperature(values: torch.Tensor, known: Known) -> torch.Tensor:
    return values / known.argument(0)


def _top_k(values: torch.Tensor, known: Known) -> torch.Tensor:
    ranks, order = _ranked(values)
    return _kept(values, order, ranks < known.argument(0))


def _top_p(values: torch.Tensor, known: Known) -> torch.Tensor:
    ranks, order = _ranked(values)
    weights = (values - values.amax(1, keepdim=True)).double().exp().gather(1, order)
    sums = weights.cumsum(1)
    return _kept(values, order, (sums - weights < known.argument(0) * sums[:, -1:]) | (ranks == 0))


def _min_p(values: torch.Tensor, known: Known) -> torch.Tensor:
    return values.masked_fill(
        values < values.amax(1, keepdim=True) + known.argument(0).log(), _NONE
    )


def _ranked(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranks, and the tokens in order: the most likely first, equal ones by lower id."""
    order = torch.sort(values, dim=1, descending=True, stable=True).indices
    return torch.arange(values.shape[1], device=values.device), order


def _kept(values: torch.Tensor, order: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The logits of what is kept of tokens in an order; the rest is ruled out."""
    return values.masked_fill(~torch.empty_like(kept).scatter_(1, order, kept), _NONE)


OPERATIONS: dict[Operation, Callable[[torch.Tensor, Known], torch.Tensor]] = {
    Operation.LOGIT_BIAS: _logit_bias,
    Operation.ALLOWED_TOKENS: _allowed_tokens,
    Operation.REPETITION_PENALTY: _repetition_penalty,
    Operation.PRESENCE_PENALTY: _presence_penalty,
    Operation.FREQUENCY_PENALTY: _frequency_penalty,
    Operation.MASK: _mask,
    Operation.TEMPERATURE: _temperature,
    Operation.TOP_K: _top_k,
    Operation.TOP_P: _top_p,
    Operation.MIN_P: _min_p,
}
