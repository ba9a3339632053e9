"""Attention of rows that read a part of their context, which a program chooses in each layer.

A program either chooses before a layer reads, by bounds of the keys of each page or by places alone
(Quest, Tang et al. 2024; StreamingLLM, Xiao et al. 2024), or after it, by the weights that the
layer gave, for the steps that follow (H2O, Zhang et al. 2023; TOVA, Oren et al. 2024; SnapKV, Li et
al. 2024). What is not chosen is not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.attention import AttentionOptions, PreparedAttention, Window, outside
from pie_inference.attention.groups import Visibility, added_mask
from pie_inference.attention.observed import probabilities_of
from pie_inference.attention.scores import scored_attention
from pie_inference.attention.sequences import Sequences
from pie_inference.device import one_of_each, upload, upload_index
from pie_inference.errors import BadBatch
from pie_inference.layers.step import RowAttention, RowKeys
from pie_inference.memory.key_bounds import BoundsOfPages, KeyBounds
from pie_inference.memory.kv_cache import KvCache


class Selection(Protocol):
    """A program in one forward of one row."""

    wants_weights: bool
    wants_scores: bool

    def keep(self, layer: int, scores: torch.Tensor | None) -> torch.Tensor:
        """The keys that a layer reads, perhaps by head: tokens, or by scores `[heads, pages]`
        pages.
        """

    def left(self, layer: int) -> torch.Tensor:
        """Which tokens a layer still reads after the weights of the steps before: bool `[tokens]`,
        or of key heads `[kv_heads, tokens]`.
        """

    def note(self, layer: int, weights: torch.Tensor, read: torch.Tensor) -> None:
        """Takes a layer's weights `[heads, tokens]`, and which tokens were read."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row's context, its input as the last token: in pages if scores are wanted, or by token."""

    selection: Selection
    input: int  # of the forward
    entries: torch.Tensor  # [entries] pages, or slots
    # What is not seen, by a layer's window; None if all is: [entries, slots of one]
    hidden: dict[Window | None, torch.Tensor | None]
    bounds: BoundsOfPages | None
    keys: RowKeys | None  # if they can be read where they are


class AttendedRows:
    """Rows that a program chooses for, in the layers of one forward."""

    def __init__(
        self,
        sequences: Sequences,
        selections: Mapping[int, Callable[[int, int], Selection]],
        cache: KvCache,
        bounds: KeyBounds,
        layers: Sequence[AttentionOptions],
        row_attention: RowAttention | None,
    ) -> None:
        """Prepares rows of one input each, by what makes the selection of a sequence, of so many
        pages and tokens. Without `row_attention`, which reads the keys of one row where they are,
        they are gathered. Raises `BadBatch` if a row has several inputs, or one whose key is not
        kept, or a mask.
        """
        self._cache, self._layers = cache, layers
        self._rows_of_one = row_attention
        self._windows = {options.window for options in layers}
        self.members = members = np.array(sorted(selections))
        firsts = sequences.input_starts[members]
        kept = sequences.input_slots[firsts] < cache.slots
        if (np.diff(sequences.input_starts)[members] != 1).any() or not kept.all():
            raise BadBatch("forward: an attend program has one input whose key is kept")
        if not sequences.visible.keys().isdisjoint(selections):
            raise BadBatch("forward: an attend program and a mask")
        device = cache.data.device
        self.rows = firsts
        self._own = upload_index(firsts, device)
        slots = sequences.input_slots[firsts]
        self._own_slots = upload(slots, device)
        cache.stamp(slots)
        self._rows = [self._row(sequences, i, selections[i], bounds) for i in members.tolist()]

    def _row(
        self,
        s: Sequences,
        i: int,
        make: Callable[[int, int], Selection],
        bounds: KeyBounds,
    ) -> _Row:
        cache, size, device = self._cache, self._cache.page_size, self._cache.data.device
        at = slice(int(s.pages.starts[i]), int(s.pages.starts[i + 1]))
        held = s.pages.used[at] > 0
        pages, used = s.pages.pages[at][held], s.pages.used[at][held]
        last = int(s.input_slots[s.input_starts[i]])
        goes_on = pages.size and pages[-1] == last // size and used[-1] == last % size
        if goes_on:
            used = np.append(used[:-1], used[-1] + 1)
        else:
            pages, used = np.append(pages, last // size), np.append(used, last % size + 1)
        grid = pages[:, None] * size + np.arange(size)
        filled = np.arange(size) < used[:, None]
        if not goes_on:  # of the page that it is put into, the input alone is in the context
            filled[-1] = grid[-1] == last
        position = int(s.positions[s.input_starts[i]])
        unseen = cache.masked[grid] if s.pages.masked[i] else np.zeros(grid.shape, np.bool_)
        unseen.flat[np.flatnonzero(grid == last)] = False  # the input is seen, whatever was there
        selection = make(pages.size, int(filled.sum()))
        by_page = selection.wants_scores
        hidden: dict[Window | None, torch.Tensor | None] = {}
        for window in self._windows:
            here = unseen
            if window is not None:
                here = unseen | outside(window, position, cache.positions[grid])
            here = here | ~filled if by_page else here[filled][:, None]
            hidden[window] = upload(here, device) if here.any() else None
        entries = (pages if by_page else grid[filled]).astype(np.int32)
        keys = None
        is_whole = (goes_on or last % size == 0) and (used[:-1] == size).all()
        is_seen = not (unseen & filled).any()
        if self._rows_of_one is not None and is_seen and (is_whole or not by_page):
            of = (size, int(used[-1])) if by_page else (1, 1)
            keys = RowKeys(entries, *of, last, cache.positions)
        return _Row(
            selection,
            int(s.input_starts[i]),
            upload(entries, device),
            hidden,
            bounds.open(pages[:-1], used[:-1]) if by_page else None,
            keys,
        )

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        """Stores their keys and values, of those of all inputs."""
        packed = self._cache.pack(keys_values.index_select(0, self._own))
        self._cache.rows[layer].index_copy_(0, self._own_slots, packed)

    def see(
        self,
        layer: int,
        queries: torch.Tensor,
        found: torch.Tensor,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Attends with their queries, of all inputs' `[t, heads, head_dim]`, and writes to their
        rows of `found`, `[t, heads * head_dim]`.
        """
        for row in self._rows:
            query = queries[row.input].contiguous()
            self._attend_row(layer, row, query, found[row.input], sinks)

    def _attend_row(
        self,
        layer: int,
        row: _Row,
        query: torch.Tensor,
        found: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> None:
        """Writes what a query `[heads, head_dim]` finds, `[heads * head_dim]`."""
        options, selection = self._layers[layer], row.selection
        scale = options.scale_of(query.shape[1])
        weights = None
        if selection.wants_weights:
            kept = selection.left(layer)
            weights = torch.empty(len(query), kept.shape[-1], device=query.device)
        elif row.bounds is None:
            kept = selection.keep(layer, None)
        else:
            kept = selection.keep(layer, self._scores(layer, row.bounds, query, scale))
        if row.keys is not None and self._rows_of_one is not None:
            self._rows_of_one.run(
                row.keys,
                query,
                self._cache.rows[layer],
                kept,
                scale=scale,
                window=options.sliding,
                found=found,
                weights=weights,
            )
        else:
            found.copy_(self._gathered(layer, row, query, self._by_key_head(kept), sinks, weights))
        if weights is not None:
            selection.note(layer, weights, kept)

    def _scores(
        self, layer: int, bounds: BoundsOfPages, query: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Of all pages. The newest is read in any case: its bounds would change with each token."""
        of_layer = bounds.of(layer)
        if self._rows_of_one is not None:
            return self._rows_of_one.scores(of_layer, bounds.pages, query, scale)
        return F.pad(bounds.scores(of_layer, query, scale), (0, 1), value=-torch.inf)

    def _by_key_head(self, kept: torch.Tensor) -> torch.Tensor:
        """The slots that are read, `[kv_heads or 1, entries]`."""
        by_head = kept[None] if kept.ndim == 1 else one_of_each(kept, self._cache.kv_heads)
        by_head = by_head.clone()
        by_head[:, -1] = True
        return by_head

    def _gathered(
        self,
        layer: int,
        row: _Row,
        query: torch.Tensor,
        by_head: torch.Tensor,
        sinks: torch.Tensor | None,
        weights: torch.Tensor | None,
    ) -> torch.Tensor:
        """The values that a query finds in entries `[kv_heads or 1, entries]`, a key head or all at
        once, and the weights that it gives, if these are to be written.
        """
        options, pool = self._layers[layer], self._cache.rows[layer]
        size = self._cache.page_size if row.bounds is not None else 1
        by_entry = pool.view(-1, size * pool.shape[1])
        queries = query.view(len(by_head), -1, query.shape[1])
        own_sinks = [None] * len(by_head) if sinks is None else sinks.view(len(by_head), -1)
        own_weights = (
            None if weights is None else weights.zero_().view(len(by_head), -1, by_head.shape[1])
        )
        hidden, found = row.hidden[options.window], []
        for i, kept in enumerate(by_head):
            places = kept.nonzero().squeeze(1)
            rows = by_entry.index_select(0, row.entries[places]).view(-1, pool.shape[1])
            both = self._cache.split(rows)
            both = both if len(by_head) == 1 else both[:, :, i : i + 1]
            unseen = None if hidden is None else hidden[places].flatten()
            if own_weights is None:
                found.append(_attend(queries[i], both, unseen, options, own_sinks[i]))
                continue
            of, given = _weighed(queries[i], both, unseen, options, own_sinks[i])
            own_weights[i].index_copy_(1, places, given)
            found.append(of)
        return torch.cat(found)


class AttendedAttention(PreparedAttention):
    """Another prepared attention beside rows that a program chooses for."""

    def __init__(
        self, inner: PreparedAttention | None, rows: AttendedRows, inputs: int, device: torch.device
    ) -> None:
        """Takes the attention of all other sequences in their order, if there are any, and how many
        inputs there are in all.
        """
        self._inner, self._rows = inner, rows
        self._others = upload(np.setdiff1d(np.arange(inputs), rows.rows), device)

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        """See `PreparedAttention.store`."""
        self._rows.store(layer, keys_values)
        if self._inner is not None:
            self._inner.store(layer, keys_values.index_select(0, self._others))

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See `PreparedAttention.attend`."""
        found = queries.new_empty(len(queries), queries[0].numel())
        self._rows.see(layer, queries, found, sinks)
        if self._inner is not None:
            others = self._inner.attend(layer, queries.index_select(0, self._others), sinks)
            found.index_copy_(0, self._others, others)
        return found


def _weighed(
    query: torch.Tensor,
    keys_values: torch.Tensor,
    hidden: torch.Tensor | None,
    options: AttentionOptions,
    sinks: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `_attend`, and the weights that it gave, float32 `[heads, keys]`."""
    if hidden is None:
        hidden = torch.zeros(len(keys_values), dtype=torch.bool, device=query.device)
    keys, values = keys_values.float().unbind(1)  # [keys, kv_heads, dim]
    weights = probabilities_of(query[None].float(), keys, hidden[None], options, sinks)[:, 0]
    found = torch.matmul(weights.view(keys.shape[1], -1, len(keys)), values.transpose(0, 1))
    return found.reshape(-1), weights


def _attend(
    query: torch.Tensor,
    keys_values: torch.Tensor,
    hidden: torch.Tensor | None,
    options: AttentionOptions,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Attention of a query `[heads, dim]` over `[keys, 2, kv_heads, dim]`: `[heads * dim]`."""
    heads, dim = query.shape
    key, value = keys_values.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)  # [1, kv_heads, keys, dim]
    mask = None if hidden is None else added_mask(hidden, query.dtype)[None, None, None]
    if options.scored:
        seen = Visibility(mask, causal=False, blank=None)
        found = scored_attention(query.view(1, heads, 1, dim), key, value, seen, options, sinks)
    else:
        # The query heads that share a key head are queries of one head: no key is repeated.
        folded = query.view(1, key.shape[1], -1, dim)
        found = F.scaled_dot_product_attention(
            folded, key, value, attn_mask=mask, scale=options.scale
        )
    return found.reshape(-1)
