"""Attention by PyTorch's scaled dot product, on any device.

Sequences are padded into groups of similar size, so that a layer costs a few calls, whatever the
number of sequences: one group for decoding, whose keys are gathered by an index made once a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from pie_inference.attention.base import AttentionBackend, AttentionOptions, PreparedAttention
from pie_inference.attention.masks import Padded, Pieces, Visibility, visibility
from pie_inference.attention.scores import capped_attention
from pie_inference.attention.sequences import Sequences
from pie_inference.attention.window import DecodeWindow
from pie_inference.attention.windows import DecodeWindows, Span
from pie_inference.kv_cache import KvCache
from pie_inference.upload import upload

MAX_SCORES = 1 << 23  # padded queries x keys of a group: bounds the memory of its mask
MAX_GATHER_BYTES = 64 << 20  # keys and values of a group that are gathered at once
GROUP_COST = 1024  # work of a further group, in gathered keys

Int64 = NDArray[np.int64]
Rows = torch.Tensor | slice  # a slice if they are consecutive


@dataclass(frozen=True, slots=True)
class _Group:
    """Pieces padded to one size."""

    batch: int  # pieces
    queries: int  # padded
    keys: int  # padded
    held: Span | None  # where the keys lie side by side, in the place of the index
    key_index: Rows  # [batch * keys] slots
    rows: Rows  # [batch * queries] inputs, in the order of the layers
    real: torch.Tensor | None  # those of them that are not padding, None if all are
    targets: Rows  # inputs of the real ones
    seen: dict[int | None, Visibility]  # by the window of the layer
    by_head: bool  # one query a head, instead of query heads as queries of the head they share


class TorchAttention(AttentionBackend):
    """Gathers keys and values from the pool and calls `scaled_dot_product_attention`."""

    def __init__(self, cache: KvCache, heads: int, layers: Sequence[AttentionOptions]) -> None:
        """Serves a cache whose keys are shared by `heads` query heads."""
        self.cache = cache
        self.heads = heads
        self.layers = layers
        self.windows = DecodeWindows(cache)
        self._spans = {options.window for options in layers if options.window is not None}
        self._gathered = cache.data.new_empty(0)

    def prepare(self, sequences: Sequences, ordered: bool = False) -> PreparedAttention:
        """Groups the sequences and makes their indices and masks.

        The order of the layers is that of the windows' rows, then come all other inputs.
        """
        keys = _KeySlots(sequences)
        self.cache.stamp(sequences.input_slots)
        held = self._open_windows(sequences, keys)
        firsts = [
            sequences.input_starts[span.members[span.real]]
            for spans in held.values()
            for span in spans
        ]
        total = sequences.input_slots.size
        left = np.ones(total, np.bool_)
        for first in firsts:
            left[first] = False
        order: Int64 | None = None
        places = np.arange(total)
        if ordered and held:
            order = np.concatenate([*firsts, np.flatnonzero(left)])
            if (order == places).all():
                order = None
            else:
                places = np.empty_like(order)
                places[order] = np.arange(total)
        groups = [
            self._held_group(sequences, keys, span, places)
            for spans in held.values()
            for span in spans
        ]
        row = self.cache.rows[0].shape[1] * self.cache.data.itemsize
        pieces = _pieces(sequences, left) if left.any() else []
        groups += [
            self._gathered_group(sequences, keys, members, places)
            for members in _grouped(pieces, max(1, MAX_GATHER_BYTES // row))
        ]
        slots = sequences.input_slots if order is None else sequences.input_slots[order]
        stores = []
        for window, spans in held.items():
            own = np.concatenate([sequences.input_starts[s.members[s.real]] for s in spans])
            stores.append((window, self._rows(places[own])))
        return _TorchPrepared(self, order, self._tensor(slots), groups, stores)

    def _tensor(self, array: Int64) -> torch.Tensor:
        return upload(array, self.cache.data.device)

    def _rows(self, array: Int64) -> Rows:
        found = _as_slice(array)
        return self._tensor(array) if found is None else found

    def _open_windows(
        self, sequences: Sequences, keys: _KeySlots
    ) -> dict[DecodeWindow, list[Span]]:
        """Rows for the sequences that decode one token."""
        members = np.flatnonzero(np.diff(sequences.input_starts) == 1)
        lengths = keys.counts[members]
        if not members.size or (members.size == 1 and _as_slice(keys.of(members)[0]) is not None):
            return {}  # nothing is faster than to read the pool itself
        return self.windows.open(members, lengths, keys.of)

    def _held_group(
        self, sequences: Sequences, keys: _KeySlots, span: Span, places: Int64
    ) -> _Group:
        """Sequences whose keys lie in rows of a window."""
        lengths = keys.counts[span.members]
        first, one = np.zeros_like(lengths), np.ones_like(lengths)
        padded = Padded(sequences, Pieces(span.members, first, one, lengths))
        real = None if span.real.all() else np.flatnonzero(span.real)
        return self._group(padded, keys, places, real, span)

    def _gathered_group(
        self, sequences: Sequences, keys: _KeySlots, pieces: list[_Piece], places: Int64
    ) -> _Group:
        """Pieces whose keys are gathered from the pool in every layer."""
        padded = Padded(sequences, Pieces(*np.array(pieces, np.int64).T))
        real = None
        if padded.padded:
            real = np.flatnonzero((padded.lanes < padded.queries[:, None]).reshape(-1))
        return self._group(padded, keys, places, real, None)

    def _group(
        self,
        padded: Padded,
        keys: _KeySlots,
        places: Int64,
        real: Int64 | None,
        held: Span | None,
    ) -> _Group:
        rows = places[padded.rows.reshape(-1)]
        slots = np.empty((0, 0), np.int64)
        if held is None or self._spans:
            slots = keys.slots[keys.starts[padded.sequence][:, None] + padded.columns]
        return _Group(
            batch=padded.keys.size,
            queries=padded.lanes.size,
            keys=padded.width,
            held=held,
            key_index=slice(0, 0) if held else self._rows(slots.reshape(-1)),
            rows=self._rows(rows),
            real=None if real is None else self._tensor(real),
            targets=self._rows(rows if real is None else rows[real]),
            seen=self._seen(padded, slots),
            by_head=padded.lanes.size > 1 or self._by_head(padded.width),
        )

    def _by_head(self, keys: int) -> bool:
        """Whether decoding is faster with one query a head, by what PyTorch's CPU kernel was found to take.

        Time with query heads as queries of the head they share, divided by that with one query a head;
        bfloat16, 64 numbers a head, 1 to 128 sequences:

        | query heads a key head | 2 | 2 | 2 | 3 | 3 | 3 | 4 | 4 | 4 |
        |---|---|---|---|---|---|---|---|---|---|
        | keys | 64 | 192 | 512 | 64 | 192 | 512 | 64 | 192 | 512 |
        | 1 thread | 1.4-1.6 | 1.5-1.7 | 1.4-2.0 | 1.0-1.2 | 1.0-1.3 | 1.1-1.7 | 0.8-1.0 | 0.9-1.6 | 0.9-2.0 |
        | 2 threads | 0.5-1.3 | 0.8-1.2 | 1.2-1.4 | 0.3-1.0 | 0.6-0.8 | 1.0-1.8 | 0.3-0.6 | 0.6-1.2 | 0.8 |
        """
        if self.cache.dtype != torch.bfloat16 or self.cache.data.device.type != "cpu":
            return False
        few = self.heads // self.cache.kv_heads <= 3
        return few and (keys >= 384 or torch.get_num_threads() == 1)

    def _seen(self, padded: Padded, slots: Int64) -> dict[int | None, Visibility]:
        """What the queries see, for every window of a layer."""
        data = self.cache.data
        everything = padded.everything(self.cache.dtype, data.device)
        found: dict[int | None, Visibility] = {None: everything}
        if self._spans:
            positions = self.cache.positions[slots]
        for span in self._spans:
            hidden = padded.hidden_by(span, positions)
            found[span] = (
                everything
                if hidden is None
                else visibility(padded.seen() & ~hidden, self.cache.dtype, data.device)
            )
        return found

    def gather(self, layer: int, group: _Group) -> torch.Tensor:
        """Keys and values of a group, `[batch, keys, 2, kv_heads, head_dim]`."""
        if group.held is not None:
            held = group.held
            return self.cache.unpack(held.window.read(layer, held.rows, group.keys))
        rows: torch.Tensor = self.cache.rows[layer]
        if isinstance(group.key_index, slice):
            found = rows[group.key_index]
        else:
            width = rows.shape[1]
            needed = group.batch * group.keys * width
            if self._gathered.numel() < needed:
                # Kept: fresh memory of this size would be mapped anew in every call.
                self._gathered = rows.new_empty(needed)
            found = self._gathered[:needed].view(-1, width)
            torch.index_select(rows, 0, group.key_index, out=found)
        cache = self.cache
        found = cache.unpack(found)
        return found.view(group.batch, group.keys, 2, cache.kv_heads, cache.head_dim)


class _TorchPrepared(PreparedAttention):
    def __init__(
        self,
        backend: TorchAttention,
        order: Int64 | None,
        slots: torch.Tensor,
        groups: list[_Group],
        stores: list[tuple[DecodeWindow, Rows]],
    ) -> None:
        self.order = order
        self._backend = backend
        self._slots = slots
        self._groups = groups
        self._stores = stores

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        keys_values = self._backend.cache.pack(keys_values)
        self._backend.cache.rows[layer].index_copy_(0, self._slots, keys_values)
        for window, rows in self._stores:
            window.store(layer, keys_values[rows])

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor | None = None
        options = self._backend.layers[layer]
        for group in self._groups:
            seen = group.seen[options.window]
            keys_values = self._backend.gather(layer, group)
            found = _attend_group(queries[group.rows], keys_values, group, seen, options)
            if seen.blank is not None:
                found.index_fill_(0, seen.blank, 0.0)
            if group.real is not None:
                found = found.index_select(0, group.real)
            if len(self._groups) == 1 and isinstance(group.targets, slice):
                return found
            if result is None:
                result = found.new_empty((queries.shape[0], found.shape[1]))
            result[group.targets] = found
        assert result is not None
        return result


def _attend_group(
    queries: torch.Tensor,
    keys_values: torch.Tensor,
    group: _Group,
    seen: Visibility,
    options: AttentionOptions,
) -> torch.Tensor:
    """Output `[batch * queries, heads * head_dim]` of one group."""
    key, value = keys_values.permute(2, 0, 3, 1, 4).unbind(0)  # [batch, kv_heads, keys, dim]
    kv_heads, dim = key.shape[1], key.shape[3]
    if options.softcap is None and not group.by_head:
        # The query heads that share a key head are queries of one head: no key is repeated.
        query = queries.view(group.batch, kv_heads, -1, dim)
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen.mask, scale=options.scale
        )
        return out.reshape(group.batch, -1)
    query = queries.view(group.batch, group.queries, -1, dim).transpose(1, 2)
    if options.softcap is not None:
        scale = options.scale or dim**-0.5
        out = capped_attention(query, key, value, seen, scale, options.softcap)
    else:
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen.mask,
            is_causal=seen.causal,
            scale=options.scale,
            enable_gqa=True,
        )
    return out.transpose(1, 2).reshape(group.batch * group.queries, -1)


class _KeySlots:
    """Slots of each sequence's keys, its context before its inputs, in one array."""

    def __init__(self, s: Sequences) -> None:
        inputs, context = np.diff(s.input_starts), np.diff(s.context_starts)
        self.starts = s.input_starts + s.context_starts
        self.counts = inputs + context
        self.slots = np.empty(s.input_slots.size + s.context_slots.size, np.int64)
        of_context = np.arange(s.context_slots.size) + np.repeat(s.input_starts[:-1], context)
        of_inputs = np.arange(s.input_slots.size) + np.repeat(s.context_starts[1:], inputs)
        self.slots[of_context] = s.context_slots
        self.slots[of_inputs] = s.input_slots

    def of(self, members: Int64) -> Int64:
        """`[n, keys]` of some sequences, padded with the last one."""
        counts = self.counts[members]
        columns = np.minimum(np.arange(int(counts.max())), counts[:, None] - 1)
        found: Int64 = self.slots[self.starts[members][:, None] + columns]
        return found


class _Piece(NamedTuple):
    """One of `Pieces`."""

    sequence: int
    first: int
    queries: int
    keys: int


def _pieces(s: Sequences, left: NDArray[np.bool_]) -> list[_Piece]:
    """Sequences, cut where one alone would exceed `MAX_SCORES`; only those whose inputs are left."""
    pieces = []
    inputs, context = np.diff(s.input_starts), np.diff(s.context_starts)
    some = np.flatnonzero(inputs)
    for i in some[left[s.input_starts[some]]].tolist():
        queries, before = int(inputs[i]), int(context[i])
        if queries == 1:
            pieces.append(_Piece(i, 0, 1, before + 1))
            continue
        step = max(1, MAX_SCORES // max(1, before + queries))
        for first in range(0, queries, step):
            count = min(step, queries - first)
            # Without an explicit rule nothing after the last query is seen.
            seen = before + queries if i in s.visible else before + first + count
            pieces.append(_Piece(i, first, count, seen))
    return pieces


def _grouped(pieces: list[_Piece], most_keys: int) -> list[list[_Piece]]:
    """Pieces of similar size together, so long as padding costs less than a further group."""
    groups: list[list[_Piece]] = []
    paid, group_keys = 0.0, 0
    for piece in sorted(pieces, key=lambda p: (p.queries, p.keys)):
        alone = _work(1, piece.queries, piece.keys)
        if groups:
            group = groups[-1]
            batch = len(group) + 1
            keys = max(piece.keys, group_keys)
            together = _work(batch, piece.queries, keys)
            if (
                together <= paid + alone + GROUP_COST
                and batch * piece.queries * keys <= MAX_SCORES
                and batch * keys <= most_keys
            ):
                group.append(piece)
                paid, group_keys = together, keys
                continue
        groups.append([piece])
        paid, group_keys = alone, piece.keys
    for group in groups:
        group.sort(key=lambda p: (p.sequence, p.first))
    return groups


def _work(batch: int, queries: int, keys: int) -> float:
    """Cost of a padded group, in gathered keys."""
    return batch * keys * (1 + queries / 8)


def _as_slice(slots: Int64) -> slice | None:
    """The slots as a range, if they are consecutive."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == slots.size and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return None
