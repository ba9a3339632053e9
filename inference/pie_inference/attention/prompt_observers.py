"""Programs of the stage `attend` that observe the attention of their prompt.

The prompt itself reads all that it may, by whatever backend. Beside that each layer gives the
program the weights of the prompt's last inputs, added up (SnapKV, Li et al. 2024), or of all of
them (H2O, Zhang et al. 2023), block by block. A prompt may come in parts: the program runs after
each, as if the inputs so far had come together, and what it chooses counts from the first generated
token on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from pie_inference.attention import AttentionOptions, Window, outside
from pie_inference.attention.observed import summed_probabilities
from pie_inference.attention.sequences import Sequences
from pie_inference.device import upload
from pie_inference.errors import BadBatch
from pie_inference.memory.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class PromptSoFar:
    """All that later parts of a prompt need of its inputs that have run."""

    tokens: int  # of the context, with these inputs
    places: torch.Tensor  # [queries] in the context, of the last inputs; of none if all are wanted
    positions: torch.Tensor  # of the same
    # Of each layer their queries `[queries, heads, head_dim]`; or if all are wanted the sums of
    # weights, `[heads, tokens]`.
    given: dict[int, torch.Tensor] = field(default_factory=dict)


class Prompt(Protocol):
    """A program in one forward of a prompt."""

    window: int | None
    so_far: object | None  # what later parts need, which is kept if this one comes to its end

    def note(self, layer: int, weights: torch.Tensor, read: torch.Tensor) -> None:
        """Takes a layer's weights `[heads, tokens]`, and which tokens were read."""


@dataclass(frozen=True, slots=True)
class _Observer:
    """A prompt, and the inputs whose weights are wanted: perhaps some of a part before."""

    prompt: Prompt
    before: PromptSoFar | None
    after: PromptSoFar
    rows: slice  # of the forward's inputs: its own
    slots: torch.Tensor  # [keys] that are live
    columns: torch.Tensor  # [keys] where they are in the context
    key_positions: torch.Tensor  # [keys]
    places: torch.Tensor  # [queries] where they are in the context
    positions: torch.Tensor  # [queries]
    read: torch.Tensor  # [tokens], all true

    def hidden(self, part: slice, window: Window | None) -> torch.Tensor:
        """The keys that some queries do not see, `[queries, keys]`, up to the last key that one
        sees.
        """
        places, positions = self.places[part, None], self.positions[part, None]
        seen = int(torch.searchsorted(self.columns, places[-1], right=True))
        hidden = self.columns[:seen] > places
        if window is not None:
            hidden |= outside(window, positions, self.key_positions[:seen])
        return hidden


class PromptObservers:
    """The programs that observe prompts of one forward."""

    rows = np.zeros(0, np.int64)  # they attend by themselves

    def __init__(
        self,
        sequences: Sequences,
        prompts: Mapping[int, Callable[[int, int], Prompt]],
        cache: KvCache,
        layers: Sequence[AttentionOptions],
    ) -> None:
        """Takes all sequences of a forward, before the masks of its output slots change, and what
        makes the prompt of one, of so many pages and tokens. Raises `BadBatch` if an input's key is
        not kept, or does not see just the inputs before it.
        """
        self._cache, self._layers = cache, layers
        self._observers = [self._observer(sequences, i, make) for i, make in prompts.items()]

    def _observer(self, s: Sequences, i: int, make: Callable[[int, int], Prompt]) -> _Observer:
        cache, device = self._cache, self._cache.data.device
        first, end = s.input_starts[i : i + 2].tolist()
        own = s.input_slots[first:end]
        if i in s.visible or (own >= cache.slots).any():
            raise BadBatch("forward: an attend program observes inputs in order, whose keys stay")
        live, filled = s.live_columns(i, cache)
        tokens = filled + end - first
        slots = s.key_slots(i)
        prompt = make(len(np.unique(slots // cache.page_size)), tokens)
        places = upload(np.arange(filled, tokens), device)
        positions = upload(s.positions[first:end].astype(np.int64), device)
        before = prompt.so_far
        if not isinstance(before, PromptSoFar) or before.tokens != filled:
            before = None  # another prompt, or this one again
        last = 0
        if window := prompt.window or 0:
            if before is not None:
                places = torch.cat((before.places, places))
                positions = torch.cat((before.positions, positions))
            places, positions = places[-window:], positions[-window:]
            last = window
        after = PromptSoFar(tokens, places[:last], positions[:last])
        prompt.so_far = after
        return _Observer(
            prompt,
            before,
            after,
            slice(first, end),
            upload(slots, device),
            upload(np.concatenate([live, np.arange(filled, tokens)]), device),
            upload(cache.positions[slots].astype(np.int64), device),
            places,
            positions,
            torch.ones(tokens, dtype=torch.bool, device=device),
        )

    def see(
        self,
        layer: int,
        queries: torch.Tensor,
        found: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Tells the programs what a layer's queries `[t, heads, head_dim]` give, whose keys are
        stored. What they find is for others to write.
        """
        for observer in self._observers:
            self._note(layer, queries[observer.rows], sinks, observer)

    def _note(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None, observer: _Observer
    ) -> None:
        """Tells the program the weights of a part's queries `[inputs, heads, head_dim]`."""
        options, before = self._layers[layer], observer.before
        window, heads = observer.prompt.window, queries.shape[1]
        if window:
            if before is not None:
                queries = torch.cat((before.given[layer], queries))
            queries = queries[-window:].clone()
        rows = self._cache.rows[layer].index_select(0, observer.slots)
        keys = self._cache.split(rows)[:, 0].float()
        found = summed_probabilities(
            queries, keys, lambda part: observer.hidden(part, options.window), options, sinks
        )
        weights = found.new_zeros(heads, len(observer.read)).index_copy_(1, observer.columns, found)
        if not window and before is not None:
            weights[:, : before.tokens] += before.given[layer]
        observer.after.given[layer] = queries if window else weights
        observer.prompt.note(layer, weights, observer.read)
