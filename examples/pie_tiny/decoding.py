"""Greedy decoding of many sequences at once, any of which may be interrupted with given tokens.

Every row takes exactly one token per step, be it given or sampled, so all rows are always at the
same position: nothing is padded and no mask is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import DynamicCache, LlamaForCausalLM


class Episode(Protocol):
    """One sequence: what it starts with, and what happens as the model writes."""

    @property
    def prompt(self) -> Sequence[int]:
        """The token ids it starts with, at least one."""

    @property
    def expected(self) -> int:
        """About how long it will be, in tokens; episodes of like length are decoded together."""

    @property
    def done(self) -> bool:
        """True if it has ended."""

    def sampled(self, token: int) -> Sequence[int]:
        """Takes a token that the model wrote; returns those to be put in before the next, mostly
        none.
        """

    def cut(self) -> None:
        """Ends it because there is no room for more."""


@torch.inference_mode()
def decode(
    model: LlamaForCausalLM, episodes: Sequence[Episode], rows: int = 64, limit: int = 1536
) -> None:
    """Plays episodes to their ends with the most likely token each time.

    Args:
        model: on any device.
        episodes: in any order.
        rows: how many are decoded together.
        limit: the longest that a sequence may get; one that is longer is cut.
    """
    ordered = sorted(episodes, key=lambda episode: episode.expected)
    for start in range(0, len(ordered), rows):
        _decode_together(model, ordered[start : start + rows], limit)


def _decode_together(model: LlamaForCausalLM, episodes: Sequence[Episode], limit: int) -> None:
    cache = DynamicCache()
    given = [deque(episode.prompt) for episode in episodes]
    shared = min(map(len, given))
    ids = [[queue.popleft() for _ in range(shared)] for queue in given]
    rows = [(episode, queue) for episode, queue in zip(episodes, given, strict=True)]
    length = shared
    while True:
        logits = model(
            input_ids=torch.tensor(ids, device=model.device),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        likeliest = logits[:, -1].argmax(-1).tolist()
        ids = [
            [_next(episode, queue, token)]
            for (episode, queue), token in zip(rows, likeliest, strict=True)
        ]
        alive = [number for number, (episode, _) in enumerate(rows) if not episode.done]
        length += 1
        if length >= limit:
            for number in alive:
                rows[number][0].cut()
            return
        if not alive:
            return
        # Rows that have ended are carried along until it pays to copy the others.
        if len(alive) <= 0.8 * len(rows):
            cache.batch_select_indices(torch.tensor(alive, device=model.device))
            rows, ids = [rows[number] for number in alive], [ids[number] for number in alive]


def _next(episode: Episode, given: deque[int], likeliest: int) -> int:
    """The row's next token: a given one if there is, else the sampled one."""
    if given:
        return given.popleft()
    if not episode.done:
        given.extend(episode.sampled(likeliest))
    return likeliest
