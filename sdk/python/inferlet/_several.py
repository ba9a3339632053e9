"""Several tokens in one forward, with the distribution after each of them.

What verification of drafts, Jacobi decoding, trees of drafts and scoring have in common.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as List
from dataclasses import dataclass
from typing import TypeVar

from inferlet import raw
from inferlet._pages import extend
from inferlet._sequence import Sequence
from inferlet.errors import PieError
from inferlet.sample import Distribution

Answer = TypeVar("Answer")
SCORED_AT_ONCE = 32  # texts, each with pages of its own
CHOSEN_AT_ONCE = 32  # tokens of a text, whose log-probabilities come in one batch
Ranges = List[tuple[int, int]]  # places of tokens that a token attends to: from, up to


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of one forward stand, and what they attend to."""

    positions: list[int] | None = None  # of the tokens; None for one after the other
    # For each token the places that it attends to, its own included; None for all before.
    mask: List[Ranges] | None = None

    @property
    def is_plain(self) -> bool:
        """True if the tokens are text, as the prefix cache takes it."""
        return self.positions is None and self.mask is None


def tree(parents: List[int], first: int, shift: int) -> Layout:
    """The layout of a tree of tokens: each attends to all before the tree, and its ancestors.

    Args:
        parents: of each token the number of the one it follows, an earlier one; -1: it follows
            what was there before.
        first: place of the first token.
        shift: position of a place, less that place.

    Raises:
        ValueError: a parent is no earlier token.
    """
    paths: list[list[int]] = []
    for i, parent in enumerate(parents):
        if not -1 <= parent < i:
            raise ValueError(
                f"the parent of token {i} is {parent}: it must be an earlier one or -1"
            )
        paths.append([*(paths[parent] if parent >= 0 else []), i])
    mask = [[(0, first), *((first + i, first + i + 1) for i in path)] for path in paths]
    return Layout([first + shift + len(path) - 1 for path in paths], mask)


async def distributions(
    sequence: Sequence, tokens: list[int], k: int, layout: Layout
) -> list[Distribution]:
    """Runs what is pending and the tokens; the `k` likeliest tokens after each of the latter.

    Raises as `_answers`.
    """

    def ask(embed: int) -> int:
        return raw.get_next_dist(sequence.queue, embed, k)

    found = await _answers(sequence, tokens, layout, ask, raw.take_dist)
    return [Distribution(*answer) for answer in found]


async def _answers(
    sequence: Sequence,
    tokens: list[int],
    layout: Layout,
    ask: Callable[[int], int],
    take: Callable[[int], Answer],
) -> list[Answer]:
    """Runs what is pending and the tokens; what is asked of the hidden state after each of the
    latter. Raises ValueError: the layout has another number of tokens, or they are too many for one
    forward; PieError: of the server; then the tokens are not part of the sequence.
    """
    sequence.retract()
    most = sequence.model.max_batch_tokens
    if layout.is_plain and len(sequence.pending) + len(tokens) > most:
        if sequence.pending:
            await sequence.submit()
        return [
            found
            for start in range(0, len(tokens), most)
            for found in await _answers(sequence, tokens[start : start + most], layout, ask, take)
        ]
    if sequence.pending and not sequence.tokens and sequence.prefix_cache:
        await sequence.submit()  # begins with what the prefix cache has
    length = len(sequence)
    embeds = queue_forward(sequence, tokens, layout)
    futures = [ask(embed) for embed in embeds]
    if len(tokens) > 1:
        raw.dealloc_emb(sequence.queue, [embeds[0], len(tokens) - 1])
    try:
        return await asyncio.gather(*(sequence.outcome(f, take) for f in futures))
    except PieError:
        sequence.truncate(length)
        raise


def queue_forward(sequence: Sequence, tokens: list[int], layout: Layout) -> list[int]:
    """Queues what is pending and the tokens in one forward; the embeds of the outputs."""
    queue, pending = sequence.queue, sequence.pending
    start, count, before = len(sequence.tokens), len(tokens), len(pending)
    position = start + sequence.shift
    positions = [position, before + count]
    if layout.positions is not None:
        positions = [position, before] if before else []
        extend(positions, layout.positions)
    inputs = raw.alloc_emb(queue, before + count)
    outputs = [inputs + before, count - 1] if count > 1 else []
    try:
        embeds = [inputs, before + count]
        raw.embed_txt(queue, [*pending, *tokens], positions, embeds)
        mask = _runs(start, before, before + count, layout.mask)
        sequence.forward([*pending, *tokens], True, embeds, mask, outputs)
    except BaseException:
        raw.dealloc_emb(queue, [inputs, before + count])
        raise
    raw.dealloc_emb(queue, [*([inputs, before] if before else []), inputs + before + count - 1, 1])
    sequence.pending = []
    if not layout.is_plain:
        sequence.prefix_cache = False
    # The hidden state after the last token is where the sequence goes on from.
    return [*range(inputs + before, inputs + before + count - 1), sequence.embed[0]]


def _runs(start: int, pending: int, columns: int, mask: List[Ranges] | None) -> list[int]:
    """A mask as the server wants it: for each input the lengths of hidden and visible stretches."""
    if mask is None:
        return []
    width = start + columns
    if len(mask) != columns - pending:
        raise ValueError(f"a mask of {len(mask)} rows for {columns - pending} tokens")
    rows: list[Ranges] = [[(0, start + i + 1)] for i in range(pending)]
    runs: list[int] = []
    for ranges in [*rows, *mask]:
        lengths: list[int] = []
        at = 0
        for first, last in sorted(ranges):
            if not at <= first <= last <= width:
                raise ValueError(f"the range {(first, last)} overlaps another or is beyond {width}")
            lengths += (first - at, last - first)
            at = last
        lengths.append(width - at)
        runs += (len(lengths), *lengths)
    return runs


async def log_probabilities(sequence: Sequence, continuation: list[int]) -> list[float]:
    """Of each token of a continuation, given what is before it. The sequence goes on with it.
    Raises ValueError: the last token is not known, so that what follows it can't be computed.
    """
    if not sequence.pending:
        sequence.rerun_last(len(sequence.tokens))
    if not sequence.pending:
        raise ValueError("nothing to continue from: fill something into the context first")
    last = sequence.pending.pop()
    tokens = [last, *continuation[:-1]]
    # Among one token there is no choice: what comes with it is its log-probability. A sampler
    # chooses one token of a batch, so several take turns.
    queue, count = sequence.queue, min(len(continuation), CHOSEN_AT_ONCE)
    samplers = [raw.create_sampler(queue, '{"temperature": 0}') for _ in range(count)]
    following = enumerate(continuation)

    def ask(embed: int) -> int:
        number, token = next(following)
        mask = sequence.mask_of(token)
        return raw.sample_masked(queue, embed, samplers[number % count], mask)

    try:
        found = await _answers(sequence, tokens, Layout(), ask, raw.take_sample)
    finally:
        for sampler in samplers:
            raw.destroy_sampler(queue, sampler)
    return [logprob for _, logprob, *_ in found]
