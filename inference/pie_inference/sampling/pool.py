"""One model's pool of samplers: parameters, chosen tokens, and what they do to logits first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import upload, upload_index
from pie_inference.sampling.choose import Parameters
from pie_inference.sampling.noise import coins
from pie_inference.sampling.operations import OPERATIONS
from pie_inference.sampling.remembered import RememberedTokens, SavedLogits
from pie_py.wire.operations import ARGUMENTS, COUNTING, HISTORY, LOOKING_BACK, Operation
from pie_py.wire.plan import Float32, Int32

SAMPLERS = 4096
COUNT_MEMORY = 256 << 20  # bytes at most for the token counts of penalties


def _no_arguments() -> Float32:
    return np.zeros((0, ARGUMENTS), np.float32)


@dataclass(frozen=True, slots=True)
class Program:
    """What a sampler does to logits before a token is chosen."""

    operations: tuple[Operation, ...] = ()
    arguments: Float32 = field(default_factory=_no_arguments)  # [o, ARGUMENTS]
    tokens: Sequence[tuple[Int32, Float32]] = ()  # of each operation, with their numbers

    def uses(self, operations: frozenset[Operation]) -> bool:
        """Whether it has one of them."""
        return not operations.isdisjoint(self.operations)


@dataclass(frozen=True, slots=True)
class Choices:
    """Choices to be made together, `n` rows: what of them depends on the moment."""

    samplers: Int32  # [n]
    steps: NDArray[np.uint32]  # [n] how many tokens each sampler has chosen before
    masked: Int32  # [n] row of masks, or -1
    masks: NDArray[np.uint32]  # [m, w] bit t % 32 of word t // 32 allows token t
    mixed: Int32  # [n, OTHERS] rows of kept logits, or -1; empty if there are none
    kept: SavedLogits


_NOTHING = Program()


class SamplerPool:
    """Slots of samplers. What a command asks for lies on the host, what the model computes on the
    device.

    `tokens` is the pool of tokens of which the host need not know yet: a sampler's slot holds the
    one that it chose last, for `embed_sampled` to read, or -1.
    """

    def __init__(self, vocabulary: int, device: torch.device, size: int = SAMPLERS) -> None:
        """Makes room for `size` samplers; memory for what they remember is allocated lazily."""
        self.size = size
        self.vocabulary = vocabulary
        self.device = device
        self.count_rows = min(size, max(1, COUNT_MEMORY // (4 * vocabulary)))
        self.tokens = torch.full((size,), -1, dtype=torch.int64, device=device)
        self.remembered = RememberedTokens(self.count_rows, vocabulary, device)
        self.programs = [_NOTHING] * size
        self.rows: Int32 = np.full(size, -1, np.int32)
        self.given: NDArray[np.int64] = np.zeros(size, np.int64)  # tokens not chosen
        self.seeds: NDArray[np.uint64] = np.zeros(size, np.uint64)
        self._numbers: Float32 = np.zeros((size, 3), np.float32)
        self._top_k: NDArray[np.int64] = np.zeros(size, np.int64)
        # What a step asks of all its samplers at once.
        self._adjusting: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._drawing: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._counting: NDArray[np.bool_] = np.zeros(size, np.bool_)
        self._looking_back: NDArray[np.bool_] = np.zeros(size, np.bool_)

    def set(
        self,
        samplers: Int32,
        numbers: Float32,
        top_k: Int32,
        seeds: NDArray[np.uint32],
        rows: Int32,
        programs: Sequence[Program],
    ) -> None:
        """Puts new samplers into slots; the parameters are those of `SetSampler`."""
        self._numbers[samplers] = numbers
        self._top_k[samplers] = top_k
        self.seeds[samplers] = seeds[:, 0] | seeds[:, 1].astype(np.uint64) << np.uint64(32)
        self.rows[samplers] = rows
        self.given[samplers] = 0
        self.forget(samplers)
        for sampler, program in zip(samplers.tolist(), programs, strict=True):
            self.programs[sampler] = program
        self._adjusting[samplers] = [bool(program.operations) for program in programs]
        self._counting[samplers] = [program.uses(COUNTING) for program in programs]
        self._looking_back[samplers] = [program.uses(LOOKING_BACK) for program in programs]
        self._drawing[samplers] = self.parameters(samplers, np.zeros(0, np.uint32)).drawn
        self.remembered.forget(rows[rows >= 0])

    def feed(
        self,
        samplers: Int32,
        tokens: Int32,
        generated: NDArray[np.bool_],
        places: NDArray[np.int64],
        left: NDArray[np.int64],
    ) -> None:
        """Tells samplers `[n]` of tokens `[n]` that they did not choose, generated or given.

        Args:
            samplers: some remember nothing.
            tokens: of their texts.
            generated: whether a token counts as generated.
            places: of the tokens, behind those that the sampler was given before.
            left: how many tokens the sampler gets behind each.
        """
        rows, known = self.rows[samplers], self.given[samplers] + places
        np.add.at(self.given, samplers, 1)
        counted = self._counting[samplers]
        if counted.any():
            fresh, old = counted & generated, counted & ~generated
            self.remembered.count(rows[fresh], self._index(tokens[fresh]))
            self.remembered.count_given(rows[old], tokens[old])
        newest = self._looking_back[samplers] & (left < HISTORY)
        if newest.any():
            self.remembered.note(rows[newest], known[newest], self._index(tokens[newest]))

    def parameters(self, samplers: Int32, steps: NDArray[np.uint32]) -> Parameters:
        """The parameters of samplers, for `choose`."""
        temperature, top_p, min_p = self._numbers[samplers].T
        return Parameters(
            temperature, self._top_k[samplers], top_p, min_p, self.seeds[samplers], steps
        )

    def adjusts(self, samplers: Int32) -> bool:
        """Whether one of the samplers changes logits."""
        return bool(self._adjusting[samplers].any())

    def draws(self, samplers: Int32) -> bool:
        """Whether one of the samplers does not just take the most likely token."""
        return bool(self._drawing[samplers].any())

    def adjust(self, logits: torch.Tensor, choices: Choices) -> None:
        """Does to float32 logits `[n, vocabulary]`, in place, what their samplers do."""
        alike: dict[tuple[Operation, ...], list[int]] = {}
        for i, sampler in enumerate(choices.samplers.tolist()):
            alike.setdefault(self.programs[sampler].operations, []).append(i)
        for operations, rows in alike.items():
            if not operations:
                continue
            index = None if len(rows) == len(logits) else self._index(np.array(rows))
            values = logits if index is None else logits[index]
            known = _Known(self, choices, np.array(rows))
            for place, operation in enumerate(operations):
                known.place = place
                values = OPERATIONS[operation](values, known)
            if index is None:
                logits.copy_(values)
            else:
                logits[index] = values

    def note(self, samplers: Int32, steps: NDArray[np.uint32], tokens: torch.Tensor) -> None:
        """Keeps, and remembers, what samplers have chosen: `[n]`, -1 for nothing."""
        self.tokens.index_copy_(0, self._index(samplers), tokens)
        self.remember(samplers, steps, tokens)

    def remember(self, samplers: Int32, steps: NDArray[np.uint32], tokens: torch.Tensor) -> None:
        """Remembers what samplers have chosen, `[n]`, for their operations."""
        counted = np.flatnonzero(self._counting[samplers])
        if counted.size:
            chosen = tokens[self._index(counted)].to(torch.int64)
            self.remembered.count(self.rows[samplers[counted]], chosen)
        kept = np.flatnonzero(self._looking_back[samplers])
        if kept.size:
            some = samplers[kept]
            places = self.given[some] + steps[kept]
            chosen = tokens[self._index(kept)].to(torch.int64)
            self.remembered.note(self.rows[some], places, chosen)

    def forget(self, samplers: Int32) -> None:
        """Forgets what samplers have chosen last."""
        if samplers.size:
            self.tokens[self._index(samplers)] = -1

    def _index(self, array: NDArray[np.integer[Any]]) -> torch.Tensor:
        return upload_index(array, self.device)


class _Known:
    """What operations may know of rows with the same operations: see `operations.Known`."""

    def __init__(self, pool: SamplerPool, choices: Choices, rows: NDArray[np.intp]) -> None:
        self._pool = pool
        self._choices = choices
        self._rows = rows
        self._samplers = choices.samplers[rows]
        self._programs = [pool.programs[sampler] for sampler in self._samplers.tolist()]
        self._counts: torch.Tensor | None = None
        self.place = 0  # of the operation among those of the rows

    def argument(self, index: int) -> torch.Tensor:
        return self._column(self._arguments(index))

    def most(self, index: int) -> int:
        return int(self._arguments(index).max())

    def key(self, index: int) -> torch.Tensor:
        low, high = (self._arguments(i).astype(np.int64) for i in (index, index + 1))
        return self._column(low | high << 24)

    def bias(self, values: torch.Tensor) -> torch.Tensor:
        pairs = [program.tokens[self.place] for program in self._programs]
        lengths = [len(tokens) for tokens, _ in pairs]
        index = self._pool._index
        rows = index(np.repeat(np.arange(len(pairs)), lengths))
        tokens = index(np.concatenate([tokens for tokens, _ in pairs]))
        added = upload(np.concatenate([numbers for _, numbers in pairs]), self._pool.device)
        values[rows, tokens] += added
        return values

    def tokens(self) -> torch.Tensor:
        found = np.zeros((len(self._rows), self._pool.vocabulary), np.bool_)
        for row, program in zip(found, self._programs, strict=True):
            row[program.tokens[self.place][0]] = True
        return upload(found, self._pool.device)

    def counts(self) -> torch.Tensor:
        if self._counts is None:
            self._counts = self._pool.remembered.counts(self._pool.rows[self._samplers])
        return self._counts

    def newest(self, most: int | None = None) -> torch.Tensor:
        pool = self._pool
        lengths = pool.given[self._samplers] + self._choices.steps[self._rows]
        if most is None:
            most = max(1, min(HISTORY, int(lengths.max())))
        return pool.remembered.newest(pool.rows[self._samplers], lengths, most)

    def coins(self) -> torch.Tensor:
        steps = self._choices.steps[self._rows]
        return self._column(coins(self._pool.seeds[self._samplers], steps))

    def allowed(self) -> torch.Tensor | None:
        masked = self._choices.masked[self._rows]
        if not (masked >= 0).any():
            return None
        words = np.full((len(masked), self._choices.masks.shape[1]), 0xFFFFFFFF, np.uint32)
        words[masked >= 0] = self._choices.masks[masked[masked >= 0]]
        return allowed(words, self._pool)

    def other(self, index: int) -> torch.Tensor | None:
        mixed = self._choices.mixed
        if not mixed.size or not (mixed[self._rows, index] != -1).any():
            return None
        rows = mixed[self._rows, index]
        found = self._choices.kept.read(self._pool._index(rows.clip(0)), self._pool.vocabulary)
        found = found.masked_fill(self._column(rows == -1), 0)
        return found.masked_fill(self._column(rows < -1), torch.nan)  # there are none to be had

    def _arguments(self, index: int) -> Float32:
        return np.array([p.arguments[self.place, index] for p in self._programs], np.float32)

    def _column(self, numbers: NDArray[Any]) -> torch.Tensor:
        return upload(np.ascontiguousarray(numbers), self._pool.device)[:, None]


def allowed(words: NDArray[np.uint32], pool: SamplerPool) -> torch.Tensor:
    """Bits of words `[n, w]` as booleans `[n, vocabulary]`: bit `t % 32` of word `t // 32` is token
    `t`.
    """
    octets = upload(np.ascontiguousarray(words).view(np.uint8), pool.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=pool.device)
    bits = (octets[:, :, None] >> shifts) & 1
    return bits.flatten(1)[:, : pool.vocabulary].bool()
