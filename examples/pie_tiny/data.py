"""Batches for training: samples drawn on the fly, of like length together, so that little is
padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer

from examples.pie_tiny.corpus.mixture import draw
from examples.pie_tiny.corpus.sample import Split
from examples.pie_tiny.tokenizer import IGNORED, encode

POOL = 2048
"""Samples drawn at once and sorted by length."""
PADDING = 64
"""A row's length is a multiple of it: few shapes, so that a compiled model serves all."""


@dataclass(frozen=True)
class Batch:
    """One step's data.

    Attributes:
        ids: int64 `[rows, length]`, padded at the end with token 0.
        targets: int64 `[rows, length]`, the next token, or `IGNORED`.
        pool: the pool it came from.
        position: how many batches of that pool are used up with it.
    """

    ids: torch.Tensor
    targets: torch.Tensor
    pool: int
    position: int


@dataclass(frozen=True)
class Stage:
    """A stage of the curriculum.

    Attributes:
        until: the share of the training's tokens at which it ends.
        longest: samples with more tokens are left out.
        batch: at most so many tokens in a batch, padding included.
        copies: the share of copying exercises among the samples.
    """

    until: float
    longest: int
    batch: int
    copies: float


def batches(
    tokenizer: Tokenizer, seed: str, stage: Stage, pool: int = 0, position: int = 0
) -> Iterator[Batch]:
    """Batches without end, from any place on.

    Args:
        tokenizer: of the samples.
        seed: of the corpus.
        stage: which samples, and how many in a batch.
        pool: where to begin: this pool...
        position: ...after so many of its batches.
    """
    while True:
        made = _pool_batches(tokenizer, seed, stage, pool)
        for number in range(position, len(made)):
            ids, targets = made[number]
            yield Batch(ids, targets, pool, number + 1)
        pool, position = pool + 1, 0


def _pool_batches(
    tokenizer: Tokenizer, seed: str, stage: Stage, pool: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    numbers = range(pool * POOL, (pool + 1) * POOL)
    samples = [draw(seed, number, Split(), stage.copies) for number in numbers]
    rows = [row for row in encode(tokenizer, samples) if len(row[0]) <= stage.longest]
    rows.sort(key=lambda row: len(row[0]))
    made = []
    while rows:
        length = -(-len(rows[-1][0]) // PADDING) * PADDING
        count = max(1, stage.batch // length)
        made.append(_pad(rows[-count:], length))
        del rows[-count:]
    Random(f"{seed}:{pool}").shuffle(made)
    return made


def _pad(rows: list[tuple[list[int], list[int]]], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.zeros(len(rows), length, dtype=torch.int64)
    targets = torch.full((len(rows), length), IGNORED, dtype=torch.int64)
    for number, (row, target) in enumerate(rows):
        ids[number, : len(row)] = torch.tensor(row)
        targets[number, : len(row) - 1] = torch.tensor(target[1:])
    return ids, targets
