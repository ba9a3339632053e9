"""Traits `input-text` and `output-text`: tokens into embeds, embeds into distributions."""

from __future__ import annotations

import math

from pie_control.api.binder import check_ids, queue_of
from pie_control.errors import exceeded, invalid
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.models.model import OpenQueue
from pie_control.scheduler.commands.embeds import EmbedTextCommand
from pie_control.scheduler.commands.sample import NextDistCommand, ReadHiddenCommand


def embed_txt(
    instance: Instance, queue: int, tokens: list[int], positions: list[int], embeds: list[int]
) -> None:
    """Queues the embedding of tokens; a long list becomes several commands."""
    target = queue_of(instance, queue, "input-text")
    pool = target.space.embed_pool
    facts = target.model.description
    rows = target.space.embeds.find_list(embeds, pool.size)
    count = len(rows)
    if len(tokens) != count:
        raise invalid(f"{len(tokens)} tokens for {count} embeds")
    if len(embeds) > 2 and len(set(rows)) != count:
        raise invalid("an embed is in the list more than once")
    places = positions_of(positions, count, facts.max_position)
    if count == 0:
        return
    check_ids(tokens, facts.vocab_size)
    most = facts.max_batch_tokens
    target.queue.check_room(-(-count // most))

    written, position_of = pool.written, pool.places
    for row, place in zip(rows, places, strict=True):
        written[row] = True
        position_of[row] = place
    if count <= most:
        command = EmbedTextCommand(tokens, places, rows)
        target.scheduler.enqueue(target.queue, command)
        return
    for start in range(0, count, most):
        part = slice(start, start + most)
        target.scheduler.enqueue(
            target.queue, EmbedTextCommand(tokens[part], places[part], rows[part])
        )


def positions_of(spans: list[int], count: int, limit: int) -> list[int]:
    """Positions `[count]` of spans. Raises ApiError `invalid-argument`."""
    if len(spans) == 2 and spans[1] == count == 1 and spans[0] < limit:  # the hot path
        return [spans[0]]
    if len(spans) % 2:
        raise invalid(
            f"positions are spans, pairs of start and count; {len(spans)} numbers are no pairs"
        )
    total = sum(spans[1::2])
    if total != count:
        raise invalid(f"{total} positions, and {count} are needed")
    places: list[int] = []
    for at in range(0, len(spans), 2):
        first, length = spans[at], spans[at + 1]
        if length and first + length > limit:
            raise invalid(
                f"position {max(first, limit)} is outside the model's context (0 to {limit - 1})"
            )
        places.extend(range(first, first + length))
    return places


def get_next_dist(instance: Instance, queue: int, embed: int, k: int) -> int:
    """Queues a distribution and opens a future of it."""
    target = queue_of(instance, queue, "output-text")
    row = written_embed(target, embed)
    if k == 0:
        raise invalid("k is 0; ask for at least one token")
    check_distribution(instance, k)
    target.queue.check_room()
    future = instance.futures.create(FutureKind.DIST)
    width = min(k, target.model.description.vocab_size)
    target.scheduler.enqueue(target.queue, NextDistCommand(row, width, future))
    return future.handle


def written_embed(target: OpenQueue, embed: int) -> int:
    """The embed behind a handle, in which there is something."""
    row = target.space.embeds.find_one(embed)
    if not target.space.embed_pool.written.item(row):
        raise invalid(f"embed {embed} holds nothing yet; give it to a forward as output")
    return row


def check_distribution(instance: Instance, tokens: float) -> None:
    """Holds a program to the operator's bound on how many tokens of a distribution it may see:
    infinitely many where it is told all of them.

    Raises:
        ApiError: `limit-exceeded`.
    """
    most = instance.limits.distribution
    if most is not None and tokens > most:
        raise exceeded(
            f"programs may see the {most} most likely tokens of a distribution here, and no hidden"
            " states: the operator's `limits.distribution`"
        )


def get_hidden(instance: Instance, queue: int, embeds: list[int]) -> int:
    """Queues the mean of hidden states and opens a future of it."""
    target = queue_of(instance, queue, "output-text")
    check_distribution(instance, math.inf)
    pool = target.space.embed_pool
    rows = target.space.embeds.find_list(embeds, pool.size)
    most = target.model.description.max_batch_tokens
    if len(rows) > most:
        raise exceeded(f"a mean of {len(rows)} embeds; {most} at most")
    if not rows or not pool.written[rows].all():
        raise invalid("no embed, or one that holds nothing yet")
    target.queue.check_room()
    future = instance.futures.create(FutureKind.HIDDEN)
    target.scheduler.enqueue(target.queue, ReadHiddenCommand(rows, future))
    return future.handle
