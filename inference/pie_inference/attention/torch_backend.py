"""Attention by PyTorch's scaled dot product, on any device.

Sequences are padded into groups of similar size, so that a layer costs a few calls, whatever the
number of sequences: one group for decoding, whose keys are gathered by an index made once a forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from numpy.typing import NDArray

from pie_inference.attention.base import AttentionBackend, AttentionOptions, PreparedAttention
from pie_inference.attention.masks import Padded, Piece, Visibility, visibility
from pie_inference.attention.scores import capped_attention
from pie_inference.attention.sequences import Sequences
from pie_inference.attention.window import DecodeWindow
from pie_inference.kv_cache import KvCache
from pie_inference.upload import upload

MAX_SCORES = 1 << 23  # padded queries x keys of a group: bounds the memory of its mask
MAX_GATHER_BYTES = 64 << 20  # keys and values of a group that are gathered at once
GROUP_COST = 1024  # work of a further group, in gathered keys
MAX_WINDOWS = (
    4  # decoding groups, of sequences of similar length, that keep their keys side by side
)

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Group:
    """Pieces padded to one size."""

    batch: int  # pieces
    queries: int  # padded
    keys: int  # padded
    key_index: torch.Tensor | slice  # [batch * keys] slots; a range if they are consecutive
    window: DecodeWindow | None  # holds the keys, in the place of the index
    rows: torch.Tensor | None  # [batch * queries] inputs, None if all inputs in order
    real: torch.Tensor | None  # rows that are not padding, None if all
    seen: dict[int | None, Visibility]  # by the window of the layer


class TorchAttention(AttentionBackend):
    """Gathers keys and values from the pool and calls `scaled_dot_product_attention`."""

    def __init__(self, cache: KvCache, heads: int, layers: Sequence[AttentionOptions]) -> None:
        """Serves a cache whose keys are shared by `heads` query heads."""
        self.cache = cache
        self.heads = heads
        self.layers = layers
        self._spans = {options.window for options in layers if options.window is not None}
        self._gathered = cache.data.new_empty(0)
        self._windows: list[DecodeWindow] = []  # one a decoding group
        self._windows_used = 0

    def prepare(self, sequences: Sequences) -> PreparedAttention:
        """Groups the sequences and makes their indices and masks."""
        keys = _KeySlots(sequences)
        self.cache.stamp(sequences.input_slots)
        self._windows_used = 0
        row = self.cache.rows[0].shape[1] * self.cache.data.itemsize
        groups = [
            self._group(sequences, keys, members)
            for members in _grouped(_pieces(sequences), max(1, MAX_GATHER_BYTES // row))
        ]
        return _TorchPrepared(self, self._tensor(sequences.input_slots), groups)

    def _tensor(self, array: Int64) -> torch.Tensor:
        return upload(array, self.cache.data.device)

    def _group(self, sequences: Sequences, keys: _KeySlots, pieces: list[Piece]) -> _Group:
        padded = Padded(sequences, pieces)
        matrix = keys.slots[keys.starts[padded.sequence][:, None] + padded.columns]
        slots, rows = matrix.reshape(-1), padded.rows.reshape(-1)
        window: DecodeWindow | None = None
        key_index: torch.Tensor | slice | None = _as_slice(slots)
        if key_index is None:
            if padded.lanes.size == 1 and len(pieces) > 1:
                window = self._open_window(matrix, padded.keys)
            key_index = slice(0, 0) if window else self._tensor(slots)
        total = int(sequences.input_starts[-1])
        real = np.flatnonzero((padded.lanes < padded.queries[:, None]).reshape(-1))
        return _Group(
            batch=len(pieces),
            queries=padded.lanes.size,
            keys=padded.columns.shape[1],
            key_index=key_index,
            window=window,
            rows=None if not padded.padded and rows.size == total else self._tensor(rows),
            real=self._tensor(real) if padded.padded else None,
            seen=self._seen(padded, matrix),
        )

    def _seen(self, padded: Padded, slots: Int64) -> dict[int | None, Visibility]:
        """What the queries see, for every window of a layer."""
        data = self.cache.data
        if padded.causal or padded.whole:
            everything = Visibility(mask=None, causal=padded.causal, blank=None)
        else:
            everything = visibility(padded.seen(), self.cache.dtype, data.device)
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

    def _open_window(self, slots: Int64, lengths: Int64) -> DecodeWindow | None:
        """The window of the next decoding group, or None if it would be too large."""
        if self._windows_used == MAX_WINDOWS:
            return None
        if self._windows_used == len(self._windows):
            self._windows.append(DecodeWindow(self.cache))
        window = self._windows[self._windows_used]
        if not window.fits(*slots.shape):
            return None
        self._windows_used += 1
        window.open(slots, lengths)
        return window

    def gather(self, layer: int, group: _Group) -> torch.Tensor:
        """Keys and values of a group, `[batch, keys, 2, kv_heads, head_dim]`."""
        if group.window is not None:
            return self.cache.unpack(group.window.read(layer, group.keys))
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
    def __init__(self, backend: TorchAttention, slots: torch.Tensor, groups: list[_Group]) -> None:
        self._backend = backend
        self._slots = slots
        self._groups = groups

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        keys_values = self._backend.cache.pack(keys_values)
        self._backend.cache.rows[layer].index_copy_(0, self._slots, keys_values)
        for group in self._groups:
            if group.window is not None:
                own = keys_values if group.rows is None else keys_values[group.rows]
                group.window.store(layer, own)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor | None = None
        options = self._backend.layers[layer]
        for group in self._groups:
            rows = queries if group.rows is None else queries.index_select(0, group.rows)
            seen = group.seen[options.window]
            keys_values = self._backend.gather(layer, group)
            found = _attend_group(rows, keys_values, group, seen, options)
            if seen.blank is not None:
                found.index_fill_(0, seen.blank, 0.0)
            if group.rows is None:
                return found
            if result is None:
                result = found.new_empty((queries.shape[0], found.shape[1]))
            if group.real is None:
                result.index_copy_(0, group.rows, found)
            else:
                rows_ = group.rows.index_select(0, group.real)
                result.index_copy_(0, rows_, found.index_select(0, group.real))
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
    if options.softcap is None and group.queries == 1:
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
        self.slots = np.empty(s.input_slots.size + s.context_slots.size, np.int64)
        of_context = np.arange(s.context_slots.size) + np.repeat(s.input_starts[:-1], context)
        of_inputs = np.arange(s.input_slots.size) + np.repeat(s.context_starts[1:], inputs)
        self.slots[of_context] = s.context_slots
        self.slots[of_inputs] = s.input_slots


def _pieces(s: Sequences) -> list[Piece]:
    """Sequences, cut where one alone would exceed `MAX_SCORES`."""
    pieces = []
    inputs, context = np.diff(s.input_starts).tolist(), np.diff(s.context_starts).tolist()
    for i, (queries, before) in enumerate(zip(inputs, context, strict=True)):
        if queries == 1:
            pieces.append(Piece(i, 0, 1, before + 1))
            continue
        step = max(1, MAX_SCORES // max(1, before + queries))
        for first in range(0, queries, step):
            count = min(step, queries - first)
            # Without an explicit rule nothing after the last query is seen.
            seen = before + queries if i in s.visible else before + first + count
            pieces.append(Piece(i, first, count, seen))
    return pieces


def _grouped(pieces: list[Piece], most_keys: int) -> list[list[Piece]]:
    """Pieces of similar size together, so long as padding costs less than a further group."""
    groups: list[list[Piece]] = []
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
