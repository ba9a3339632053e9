"""Attention scores of a forward's inputs, computed beside whatever backend does the attention.

Key-value caches are pruned by it: Heavy-Hitter Oracle (Zhang et al. 2023), PyramidKV (Cai et al.
2024), AdaKV (Feng et al. 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from pie_inference.attention import AttentionOptions, PreparedAttention, Window, outside
from pie_inference.attention.scores import softmax_beside
from pie_inference.attention.sequences import Sequences
from pie_inference.device import DeviceFuture, upload
from pie_inference.memory.kv_cache import KvCache
from pie_py.wire.plan import DETAILS, Attention, Forward

MAX_SCORES = 1 << 24  # float32 scores at a time: bounds the memory


@dataclass(frozen=True, slots=True)
class _Watched:
    """A sequence whose last inputs are observed."""

    detail: str
    rows: slice  # of the forward's inputs: those observed
    slots: torch.Tensor  # [keys] of its live context and inputs
    columns: torch.Tensor  # [keys] where they are among all columns
    hidden: dict[
        Window | None, torch.Tensor
    ]  # [observed, keys] what is not seen, by a layer's window
    sums: torch.Tensor  # [1, layers, or layers * heads, columns]


class Watch(Protocol):
    """Sees a layer's queries before these attend, after the keys and values were stored."""

    def see(self, layer: int, queries: torch.Tensor, *, sinks: torch.Tensor | None = None) -> None:
        """Takes queries `[t, heads, head_dim]`, and sinks as `PreparedAttention.attend` does."""


class WatchedAttention(PreparedAttention):
    """Another prepared attention, whose queries some see before they attend, behind `store`."""

    def __init__(self, inner: PreparedAttention, watches: Sequence[Watch]) -> None:
        """Takes the attention of the whole batch."""
        self._inner, self._watches = inner, watches
        self.states = inner.states

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        """See `PreparedAttention.store`."""
        self._inner.store(layer, keys_values)

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `PreparedAttention.attend`."""
        for watch in self._watches:
            watch.see(layer, queries, sinks=sinks)
        return self._inner.attend(layer, queries, sinks)


class ObservedInputs:
    """Notes of what a forward's inputs attend to.

    They are softmax probabilities in float32, summed over the observed inputs of a sequence; slots
    that are hidden by whatever rule have zero.
    """

    def __init__(
        self,
        batch: Forward,
        sequences: Sequences,
        cache: KvCache,
        heads: int,
        layers: Sequence[AttentionOptions],
    ) -> None:
        """Takes a checked batch, before the masks of its output slots change."""
        self._cache = cache
        self._heads = heads
        self._layers = layers
        self._watched = {
            i: self._watch(batch, sequences, i) for i in np.flatnonzero(batch.observed).tolist()
        }
        self._sequences = batch.observed.size

    def see(self, layer: int, queries: torch.Tensor, *, sinks: torch.Tensor | None = None) -> None:
        """See `Watch.see`."""
        for watched in self._watched.values():
            self._note(layer, queries[watched.rows], sinks, watched)

    def result(self) -> DeviceFuture[Attention]:
        """The notes, after the last layer."""
        parts = [self._watched[i].sums.flatten() for i in sorted(self._watched)]
        counts = [
            self._watched[i].sums.numel() if i in self._watched else 0
            for i in range(self._sequences)
        ]
        starts = np.cumsum([0, *counts], dtype=np.int32)
        return DeviceFuture([torch.cat(parts)], lambda arrays: Attention(starts, arrays[0]))

    def _watch(self, batch: Forward, sequences: Sequences, i: int) -> _Watched:
        first, end = sequences.input_starts[i : i + 2].tolist()
        count = int(batch.observed[i])
        slots = sequences.key_slots(i)
        live, filled = sequences.live_columns(i, self._cache)
        columns = np.concatenate([live, filled + np.arange(end - first)])
        seen = sequences.seen(i)[-count:]
        own, keys = sequences.positions[end - count : end], self._cache.positions[slots]
        device = self._cache.data.device
        hidden = {}
        for window in {options.window for options in self._layers}:
            visible = seen if window is None else seen & ~outside(window, own[:, None], keys)
            hidden[window] = upload(~visible, device)
        detail = DETAILS[batch.detail[i]]
        rows = {
            "total": 1,
            "layers": len(self._layers),
            "heads": len(self._layers) * self._heads,
        }[detail]
        return _Watched(
            detail,
            slice(end - count, end),
            upload(slots, device),
            upload(columns, device),
            hidden,
            torch.zeros(rows, filled + end - first, device=device),
        )

    def _note(
        self,
        layer: int,
        queries: torch.Tensor,
        sinks: torch.Tensor | None,
        watched: _Watched,
    ) -> None:
        """Adds a layer's probabilities of queries `[observed, heads, head_dim]`."""
        options, cache = self._layers[layer], self._cache
        rows = cache.rows[layer].index_select(0, watched.slots)
        keys = cache.split(rows)[:, 0].float()
        hidden = watched.hidden[options.window]
        found = summed_probabilities(queries, keys, hidden.__getitem__, options, sinks)
        match watched.detail:
            case "heads":
                at = slice(layer * self._heads, (layer + 1) * self._heads)
                watched.sums[at].index_add_(1, watched.columns, found)
            case "layers":
                watched.sums[layer].index_add_(0, watched.columns, found.mean(0))
            case _:
                mean = found.mean(0) / len(self._layers)
                watched.sums[0].index_add_(0, watched.columns, mean)


def summed_probabilities(
    queries: torch.Tensor,
    keys: torch.Tensor,
    hidden: Callable[[slice], torch.Tensor],
    options: AttentionOptions,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax over the keys, added up over the queries, `[heads, keys]`: block by block, so that
    memory is bounded.

    Args:
        queries: `[queries, heads, head_dim]`.
        keys: `[keys, kv_heads, head_dim]`, float32; consecutive heads share one.
        hidden: of some of the queries what they do not see, `[queries, keys]`, or of the first keys
            only if they see none of the others.
        options: of the layer.
        sinks: as `probabilities_of` takes them.
    """
    count, heads = queries.shape[:2]
    step = max(1, MAX_SCORES // (heads * len(keys)))
    found = torch.zeros(heads, len(keys), device=keys.device)
    for first in range(0, count, step):
        part = slice(first, first + step)
        unseen = hidden(part)
        seen, own = unseen.shape[1], queries[part].float()
        found[:, :seen] += probabilities_of(own, keys[:seen], unseen, options, sinks).sum(1)
    return found


def probabilities_of(
    queries: torch.Tensor,
    keys: torch.Tensor,
    hidden: torch.Tensor,
    options: AttentionOptions,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax over the keys, `[heads, queries, keys]`; zeros for a query that sees none.

    Args:
        queries: `[queries, heads, head_dim]`.
        keys: `[keys, kv_heads, head_dim]`; consecutive heads share one.
        hidden: `[queries, keys]`.
        options: of the layer.
        sinks: `[heads]`, which take their part of each sum; None if the layer has none.
    """
    count, heads, dim = queries.shape
    kv_heads = keys.shape[1]
    by_key = queries.permute(1, 0, 2).reshape(kv_heads, -1, dim)
    scores = torch.matmul(by_key, keys.permute(1, 2, 0)).view(heads, count, -1)
    scores *= options.scale_of(dim)
    if options.softcap is not None:
        scores = scores.div_(options.softcap).tanh_().mul_(options.softcap)
    scores = scores.masked_fill_(hidden, float("-inf"))
    probabilities = softmax_beside(scores, None if sinks is None else sinks.float().view(-1, 1, 1))
    return probabilities.masked_fill_(hidden, 0.0)
