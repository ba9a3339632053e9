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
from numpy.typing import NDArray

from pie_inference.attention.base import AttentionOptions, PreparedAttention
from pie_inference.attention.groups import Visibility
from pie_inference.attention.observed import probabilities_of
from pie_inference.attention.scores import scored_attention
from pie_inference.attention.sequences import Sequences
from pie_inference.device import upload, upload_index
from pie_inference.errors import BadBatch
from pie_inference.layers.step import RowAttention
from pie_inference.memory.key_bounds import BoundsOfPages, KeyBounds
from pie_inference.memory.kv_cache import KvCache

Int64 = NDArray[np.int64]


class Selection(Protocol):
    """A program in one forward of one row."""

    wants_weights: bool
    wants_scores: bool

    def keep(self, layer: int, scores: torch.Tensor | None) -> torch.Tensor:
        """What a layer reads: tokens, or by scores `[heads, pages]` pages, perhaps by head."""

    def left(self, layer: int) -> torch.Tensor:
        """Which tokens a layer still reads after the weights of the steps before: bool."""

    def note(self, layer: int, weights: torch.Tensor, read: torch.Tensor) -> None:
        """Takes a layer's weights `[heads, tokens]`, and which tokens were read."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row's context, its input as the last token, in pages and token by token."""

    selection: Selection
    pages: torch.Tensor  # [pages]
    slots: torch.Tensor  # [tokens]
    # What is not seen, by a layer's window; None if all is: [tokens], and of pages [pages, size]
    hidden: dict[int | None, torch.Tensor | None]
    hidden_in_pages: dict[int | None, torch.Tensor | None]
    bounds: BoundsOfPages | None
    slot: int  # of the input
    last: int  # filled slots of the last page
    is_plain: bool  # no slot is masked, and all other pages are full


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
        """Prepares rows of one input each.

        Args:
            sequences: all of the forward.
            selections: makes the selection of a sequence, of so many pages and tokens.
            cache: of keys and values.
            bounds: of its pages' keys.
            layers: options of each.
            row_attention: reads the keys of one row where they are; None: they are gathered.

        Raises:
            BadBatch: a row has several inputs, or one whose key is not kept, or a mask.
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
        hidden: dict[int | None, torch.Tensor | None] = {}
        in_pages: dict[int | None, torch.Tensor | None] = {}
        for window in self._windows:
            here = unseen
            if window is not None:
                here = unseen | (cache.positions[grid] <= position - window)
            tokens, outside = here[filled], here | ~filled
            hidden[window] = upload(tokens, device) if tokens.any() else None
            in_pages[window] = upload(outside, device) if outside.any() else None
        selection = make(pages.size, int(filled.sum()))
        return _Row(
            selection,
            upload(pages.astype(np.int32), device),
            upload(grid[filled].astype(np.int32), device),
            hidden,
            in_pages,
            bounds.open(pages[:-1], used[:-1]) if selection.wants_scores else None,
            last,
            int(used[-1]),
            bool(goes_on or last % size == 0) and not unseen.any() and (used[:-1] == size).all(),
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
        own = queries.index_select(0, self._own)
        each = [self._attend_row(layer, row, own[i], sinks) for i, row in enumerate(self._rows)]
        found.index_copy_(0, self._own, torch.stack(each).to(found.dtype))

    def _attend_row(
        self, layer: int, row: _Row, query: torch.Tensor, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """What a query `[heads, head_dim]` finds, `[heads * head_dim]`."""
        options, selection = self._layers[layer], row.selection
        hidden = row.hidden[options.window]
        if selection.wants_weights:
            return self._weighed(layer, row, query, hidden, sinks)
        if row.bounds is None:
            kept = selection.keep(layer, None).clone()
            kept[-1] = True  # the newest token reads itself
            places = kept.nonzero().squeeze(1)
            slots = row.slots.index_select(0, places)
            if self._rows_of_one is not None and row.is_plain:
                return self._read(layer, row, query, slots, np.array([len(slots)]), 1, 1)
            rows = self._cache.rows[layer].index_select(0, slots)
            return _attend(query, self._cache.split(rows), _part(hidden, places), options, sinks)
        scale = query.shape[-1] ** -0.5 if options.scale is None else options.scale
        # The newest page is read in any case: its bounds would change with each token.
        scores = F.pad(row.bounds.scores(layer, query, scale), (0, 1), value=-torch.inf)
        kept = selection.keep(layer, scores)
        # Query heads that share a key head read what one of them reads.
        by_head = kept[None] if kept.ndim == 1 else _any_of_group(kept, self._cache.kv_heads)
        by_head = by_head.clone()
        by_head[:, -1] = True
        if self._rows_of_one is not None and row.is_plain:
            head_and_page = by_head.nonzero()
            pages = row.pages.index_select(0, head_and_page[:, 1])
            counts = by_head.sum(1).numpy()
            return self._read(layer, row, query, pages, counts, self._cache.page_size, row.last)
        return self._gathered(layer, row, query, by_head, sinks)

    def _gathered(
        self,
        layer: int,
        row: _Row,
        query: torch.Tensor,
        by_head: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """What a query finds in pages `[kv_heads or 1, pages]`, a key head or all at once."""
        options, pool = self._layers[layer], self._cache.rows[layer]
        by_page = pool.view(-1, self._cache.page_size * pool.shape[1])
        queries = query.view(len(by_head), -1, query.shape[1])
        own_sinks = [None] * len(by_head) if sinks is None else sinks.view(len(by_head), -1)
        found = []
        for i, kept in enumerate(by_head):
            places = kept.nonzero().squeeze(1)
            rows = by_page.index_select(0, row.pages[places]).view(-1, pool.shape[1])
            both = self._cache.split(rows)
            both = both if len(by_head) == 1 else both[:, :, i : i + 1]
            unseen = _part(row.hidden_in_pages[options.window], places)
            unseen = None if unseen is None else unseen.flatten()
            found.append(_attend(queries[i], both, unseen, options, own_sinks[i]))
        return torch.cat(found)

    def _read(
        self,
        layer: int,
        row: _Row,
        query: torch.Tensor,
        entries: torch.Tensor,
        counts: Int64,
        size: int,
        last: int,
    ) -> torch.Tensor:
        """What a query finds in keys that are read where they are: entries of `size` slots, the
        last one of `last`; so many for each key head, or for all of them.
        """
        options, cache = self._layers[layer], self._cache
        assert self._rows_of_one is not None
        starts = np.cumsum(counts) - counts
        if len(counts) < cache.kv_heads:
            starts, counts = starts.repeat(cache.kv_heads), counts.repeat(cache.kv_heads)
        return self._rows_of_one.run(
            query,
            cache.rows[layer],
            entries,
            starts,
            (counts - 1) * size + last,
            size,
            scale=query.shape[-1] ** -0.5 if options.scale is None else options.scale,
            window=options.window,
            slot=row.slot,
            positions=cache.positions,
        )

    def _weighed(
        self,
        layer: int,
        row: _Row,
        query: torch.Tensor,
        hidden: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """As `_attend_row`, of a program that is told the weights."""
        options, selection = self._layers[layer], row.selection
        read = selection.left(layer)
        places = read.nonzero().squeeze(1)
        both = self._cache.split(self._cache.rows[layer].index_select(0, row.slots[places]))
        unseen = _part(hidden, places)
        if unseen is None:
            unseen = torch.zeros(len(places), dtype=torch.bool, device=query.device)
        keys, values = both.float().unbind(1)  # [tokens, kv_heads, dim]
        weights = probabilities_of(query[None].float(), keys, unseen[None], options, sinks)[:, 0]
        heads, kv_heads = len(query), keys.shape[1]
        found = torch.matmul(weights.view(kv_heads, -1, len(places)), values.transpose(0, 1))
        whole = weights.new_zeros(heads, len(row.slots)).index_copy_(1, places, weights)
        selection.note(layer, whole, read)
        return found.reshape(-1)


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


def _any_of_group(kept: torch.Tensor, kv_heads: int) -> torch.Tensor:
    return kept.view(kv_heads, -1, kept.shape[1]).any(1)


def _part(hidden: torch.Tensor | None, places: torch.Tensor) -> torch.Tensor | None:
    return None if hidden is None else hidden.index_select(0, places)


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
    mask = None
    if hidden is not None:
        mask = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
        mask = mask.masked_fill_(hidden, float("-inf"))[None, None, None]
    if options.scored:
        scale = dim**-0.5 if options.scale is None else options.scale
        seen = Visibility(mask, causal=False, blank=None)
        found = scored_attention(
            query.view(1, heads, 1, dim), key, value, seen, scale, options.softcap, sinks
        )
    else:
        # The query heads that share a key head are queries of one head: no key is repeated.
        folded = query.view(1, key.shape[1], -1, dim)
        found = F.scaled_dot_product_attention(
            folded, key, value, attn_mask=mask, scale=options.scale
        )
    return found.reshape(-1)
