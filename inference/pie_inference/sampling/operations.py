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
from torch.nn.functional import pad

from pie_inference.device import upload, upload_index
from pie_inference.sampling.noise import coins, numbers
from pie_inference.sampling.pool import Choices, SamplerPool, allowed
from pie_inference.sampling.remembered import TIMES
from pie_py.wire.operations import HISTORY, MATCH, Operation
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

    def most(self, index: int) -> int:
        """The largest of an argument."""
        return int(self._arguments(index).max())

    def key(self, index: int) -> torch.Tensor:
        """Two arguments as the halves of a number of 48 bits: int64 `[n, 1]`."""
        low, high = (self._arguments(i).astype(np.int64) for i in (index, index + 1))
        return self._column(low | high << 24)

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

    def sequences(self) -> torch.Tensor:
        """The operation's sequences, each at the end of its row, with -2 before it: int64
        `[n, s, m]`.
        """
        found = []
        for program in self._programs:
            tokens, numbers = program.tokens[self.place]
            ends = np.flatnonzero(np.diff(numbers)) + 1
            found.append(np.split(tokens, ends))
        shape = (len(found), max(map(len, found)), max(len(s) for all_ in found for s in all_))
        table = np.full(shape, -2, np.int64)
        for row, sequences in zip(table, found, strict=True):
            for place, sequence in zip(row, sequences, strict=False):
                place[-len(sequence) :] = sequence
        return upload_index(table, self._pool.device)

    def early(self) -> torch.Tensor:
        """Whether fewer tokens than the first argument were chosen: bool `[n, 1]`."""
        return self._column(self._choices.steps[self._rows] < self._arguments(0))

    def counts(self) -> torch.Tensor:
        """`RememberedTokens.counts`."""
        if self._counts is None:
            self._counts = self._pool.remembered.counts(self._pool.rows[self._samplers])
        return self._counts

    def newest(self, most: int | None = None) -> torch.Tensor:
        """`RememberedTokens.newest`, of all that there are by default."""
        pool = self._pool
        lengths = pool.given[self._samplers] + self._choices.steps[self._rows]
        if most is None:
            most = max(1, min(HISTORY, int(lengths.max())))
        return pool.remembered.newest(pool.rows[self._samplers], lengths, most)

    def coins(self) -> torch.Tensor:
        """A random number of each row, 0 up to 1, float32 `[n, 1]`."""
        steps = self._choices.steps[self._rows]
        return self._column(coins(self._pool.seeds[self._samplers], steps))

    def allowed(self) -> torch.Tensor | None:
        """What the choices' masks allow: bool `[n, vocabulary]`; None if no row has one."""
        masked = self._choices.masked[self._rows]
        if not (masked >= 0).any():
            return None
        words = np.full((len(masked), self._choices.masks.shape[1]), 0xFFFFFFFF, np.uint32)
        words[masked >= 0] = self._choices.masks[masked[masked >= 0]]
        return allowed(words, self._pool)

    def other(self, index: int) -> torch.Tensor | None:
        """Logits to be mixed in, zeros for rows without: `[n, vocabulary]`; None if no row has."""
        mixed = self._choices.mixed
        if not mixed.size or not (mixed[self._rows, index] != -1).any():
            return None
        found = self._choices.others(index, self._rows, self._pool.vocabulary, self._pool.device)
        return found.masked_fill(self._column(mixed[self._rows, index] == -1), 0)

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


def _mix(values: torch.Tensor, known: Known) -> torch.Tensor:
    """A sum of several models' or texts' logits, of the tokens that the first finds plausible.

    Li et al., Contrastive Decoding, 2023; Sanchez et al., Classifier-Free Guidance, 2023.
    """
    bar = values.amax(1, keepdim=True) + known.argument(0).log()
    mixed = values * known.argument(1)
    for index in (0, 1):
        other = known.other(index)
        if other is not None:
            mixed = mixed + known.argument(2 + index) * other
    return mixed.masked_fill(values < bar, _NONE)


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


def _no_repeat_ngram(values: torch.Tensor, known: Known) -> torch.Tensor:
    """Rules out what would complete a sequence of this many tokens that there was before."""
    newest = known.newest()
    size = known.most(0)
    lengths = repetitions(newest, size - 1, newest < 0)
    banned = (lengths >= known.argument(0) - 1) & (newest >= 0)
    found = torch.zeros_like(values, dtype=torch.uint8)
    found.scatter_reduce_(1, newest.clamp(min=0), banned.to(torch.uint8), "amax")
    return values.masked_fill(found > 0, _NONE)


def _banned_sequences(values: torch.Tensor, known: Known) -> torch.Tensor:
    """Rules out what would complete a sequence."""
    sequences = known.sequences()
    before = sequences[:, :, :-1]
    newest = known.newest(before.shape[2])[:, None] if before.shape[2] else before
    banned = ((before == newest) | (before == -2)).all(2) & (sequences[:, :, -1] >= 0)
    found = torch.zeros_like(values, dtype=torch.uint8)
    last = sequences[:, :, -1].clamp(min=0)
    found.scatter_reduce_(1, last, banned.to(torch.uint8), "amax")
    return values.masked_fill(found > 0, _NONE)


def _min_tokens(values: torch.Tensor, known: Known) -> torch.Tensor:
    return values.masked_fill(known.tokens() & known.early(), _NONE)


def _dry(values: torch.Tensor, known: Known) -> torch.Tensor:
    """Takes off what grows with the length of the repetition that a token would go on with."""
    newest = known.newest()
    breaks = (newest < 0) | known.tokens().gather(1, newest.clamp(min=0))
    lengths = repetitions(newest, MATCH, breaks)
    counted = (lengths >= known.argument(2)) & (lengths > 0) & ~breaks
    penalty = known.argument(0) * known.argument(1) ** (lengths - known.argument(2))
    taken = torch.zeros_like(values)
    taken.scatter_reduce_(1, newest.clamp(min=0), torch.where(counted, penalty, 0.0), "amax")
    return values - taken


def repetitions(newest: torch.Tensor, most: int, breaks: torch.Tensor) -> torch.Tensor:
    """How many tokens, `most` at most, before each place of `[n, m]` are the last ones of its text:
    int64 `[n, m]`. A repetition ends where it `breaks`.
    """
    if most == 0:
        return torch.zeros_like(newest)
    before = pad(newest, (most, 0), value=-1).unfold(1, most, 1)  # [n, m + 1, most]
    broken = pad(breaks, (most, 0), value=True).unfold(1, most, 1)
    same = (before[:, :-1] == before[:, -1:]) & ~broken[:, :-1]
    parts = pad((~same).flip(2), (0, 1), value=True)  # the first one that differs, or none
    return parts.to(torch.uint8).argmax(2)


def _watermark(values: torch.Tensor, known: Known) -> torch.Tensor:
    """Makes tokens likelier that a hash of the token before favours (Kirchenbauer et al. 2023)."""
    before = known.newest(1)
    share = known.argument(1) * 2.0**24
    every = torch.arange(values.shape[1], device=values.device)
    drawn = numbers(numbers(known.key(2), before), every) >> 40 & 0xFFFFFF
    return values + known.argument(0) * ((drawn < share) & (before >= 0))


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


def _typical_p(values: torch.Tensor, known: Known) -> torch.Tensor:
    """Keeps those whose surprise is nearest to what is expected (Meister et al. 2022)."""
    logs, entropy = _entropy(values)
    distance = (-logs - entropy).abs()
    nearest, order = torch.sort(distance, dim=1, stable=True)
    short = logs.exp().gather(1, order).cumsum(1) < known.argument(0)
    last = short.sum(1, keepdim=True).clamp(max=values.shape[1] - 1)
    return values.masked_fill(distance > nearest.gather(1, last), _NONE)


def _epsilon(values: torch.Tensor, known: Known) -> torch.Tensor:
    return _above(values, values.log_softmax(1), known.argument(0))


def _eta(values: torch.Tensor, known: Known) -> torch.Tensor:
    """A bar that falls where the model is unsure (Hewitt et al. 2022)."""
    logs, entropy = _entropy(values)
    epsilon = known.argument(0)
    return _above(values, logs, torch.minimum(epsilon, epsilon.sqrt() * (-entropy).exp()))


def _xtc(values: torch.Tensor, known: Known) -> torch.Tensor:
    """Sometimes leaves out all likely tokens but the least likely of them."""
    _, order = _ranked(values)
    chances = values.softmax(1).gather(1, order)
    likely = (chances >= known.argument(0)) & (chances > 0)
    kept = ~(likely & pad(likely[:, 1:], (0, 1), value=False))
    return _kept(values, order, kept | (known.coins() >= known.argument(1)))


def _ranked(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranks, and the tokens in order: the most likely first, equal ones by lower id."""
    order = torch.sort(values, dim=1, descending=True, stable=True).indices
    return torch.arange(values.shape[1], device=values.device), order


def _kept(values: torch.Tensor, order: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """The logits of what is kept of tokens in an order; the rest is ruled out."""
    return values.masked_fill(~torch.empty_like(kept).scatter_(1, order, kept), _NONE)


def _entropy(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities, and the entropy `[n, 1]` in nats."""
    logs = values.log_softmax(1)
    return logs, -(logs.exp() * logs).nansum(1, keepdim=True)


def _above(values: torch.Tensor, logs: torch.Tensor, bar: torch.Tensor) -> torch.Tensor:
    """What is at least as likely as a bar, and in any case the likeliest."""
    return values.masked_fill((logs.exp() < bar) & (values < values.amax(1, keepdim=True)), _NONE)


OPERATIONS: dict[Operation, Callable[[torch.Tensor, Known], torch.Tensor]] = {
    Operation.MIX: _mix,
    Operation.LOGIT_BIAS: _logit_bias,
    Operation.ALLOWED_TOKENS: _allowed_tokens,
    Operation.REPETITION_PENALTY: _repetition_penalty,
    Operation.PRESENCE_PENALTY: _presence_penalty,
    Operation.FREQUENCY_PENALTY: _frequency_penalty,
    Operation.NO_REPEAT_NGRAM: _no_repeat_ngram,
    Operation.BANNED_SEQUENCES: _banned_sequences,
    Operation.MIN_TOKENS: _min_tokens,
    Operation.DRY: _dry,
    Operation.WATERMARK: _watermark,
    Operation.MASK: _mask,
    Operation.TEMPERATURE: _temperature,
    Operation.TOP_K: _top_k,
    Operation.TOP_P: _top_p,
    Operation.MIN_P: _min_p,
    Operation.TYPICAL_P: _typical_p,
    Operation.EPSILON_CUTOFF: _epsilon,
    Operation.ETA_CUTOFF: _eta,
    Operation.XTC: _xtc,
}
