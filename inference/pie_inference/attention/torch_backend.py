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
from pie_inference.attention.decode_cache import DecodeWindow
from pie_inference.attention.decode_caches import DecodeWindows, Span
from pie_inference.attention.masks import Padded, Pieces, Visibility, visibility
from pie_inference.attention.paging import ranges
from pie_inference.attention.pieces import KeySlots, Piece, grouped, pieces_of
from pie_inference.attention.scores import capped_attention
from pie_inference.attention.sequences import Sequences
from pie_inference.attention.shared_prefix import (
    Beginning,
    Parts,
    attend_to_beginning,
    find_beginnings,
    flash,
    joined,
)
from pie_inference.device.upload import upload
from pie_inference.memory.kv_cache import KvCache

MAX_GATHER_BYTES = 64 << 20  # keys and values of a group that are gathered at once

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


@dataclass(frozen=True, slots=True)
class _Joint:
    """A beginning that inputs share."""

    keys: int
    key_index: Rows  # [keys] slots
    rows: Rows  # its inputs, in the order of the layers


class TorchAttention(AttentionBackend):
    """Gathers keys and values from the pool and calls `scaled_dot_product_attention`."""

    def __init__(self, cache: KvCache, heads: int, layers: Sequence[AttentionOptions]) -> None:
        """Serves a cache whose keys are shared by `heads` query heads."""
        self.cache = cache
        self.heads = heads
        self.layers = layers
        self.windows = DecodeWindows(cache)
        self._spans = {options.window for options in layers if options.window is not None}
        on_cpu = cache.data.device.type == "cpu"
        self._tiles = on_cpu and bool(torch.cpu.get_capabilities().get("amx_tile"))
        # Whether every sequence attends to all its keys by itself: other kernels don't tell sums to join by.
        capped = any(options.softcap is not None for options in layers)
        self._apart = capped or not on_cpu
        self._gathered = cache.data.new_empty(0)

    def prepare(self, sequences: Sequences, ordered: bool = False) -> PreparedAttention:
        """Groups the sequences and makes their indices and masks.

        The order of the layers is that of the windows' rows, then come all other inputs. What sequences share
        is attended to apart, and windows and groups are of the rest.
        """
        self.cache.stamp(sequences.input_slots)
        whole, beginnings = sequences, self._beginnings(sequences)
        if beginnings:
            shared = np.zeros(whole.input_starts.size - 1, np.int64)
            for beginning in beginnings:
                shared[beginning.members] = beginning.entries
            sequences = whole.without(shared)
        keys = KeySlots(sequences)
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
        pieces = pieces_of(sequences, left) if left.any() else []
        groups += [
            self._gathered_group(sequences, keys, members, places)
            for members in grouped(pieces, max(1, MAX_GATHER_BYTES // row))
        ]
        slots = sequences.input_slots if order is None else sequences.input_slots[order]
        stores = []
        for window, spans in held.items():
            own = np.concatenate([sequences.input_starts[s.members[s.real]] for s in spans])
            stores.append((window, self._rows(places[own])))
        joint = [self._joint(whole, beginning, places) for beginning in beginnings]
        return _TorchPrepared(self, order, self._tensor(slots), groups, joint, stores)

    def _tensor(self, array: Int64) -> torch.Tensor:
        return upload(array, self.cache.data.device)

    def _rows(self, array: Int64) -> Rows:
        found = _as_slice(array)
        return self._tensor(array) if found is None else found

    def _beginnings(self, s: Sequences) -> list[Beginning]:
        """What sequences share, if every layer lets their inputs see all of it."""
        if self._apart:
            return []
        able = ~s.pages.masked & (np.diff(s.input_starts) > 0)
        able[list(s.visible)] = False
        found = find_beginnings(s, able)
        if not self._spans:
            return found
        return [b for b in found if self._reach(s, b) < min(self._spans)]

    def _reach(self, s: Sequences, beginning: Beginning) -> int:
        """How far, in positions, an input is from a key of a shared beginning, at the most."""
        last = max(
            int(s.positions[slice(*s.input_starts[i : i + 2].tolist())].max())
            for i in beginning.members.tolist()
        )
        slots = s.first_slots(int(beginning.members[0]), beginning.entries)
        return last - int(self.cache.positions[slots].min())

    def _joint(self, s: Sequences, beginning: Beginning, places: Int64) -> _Joint:
        members = beginning.members
        inputs = ranges(s.input_starts[members], np.diff(s.input_starts)[members])
        slots = s.first_slots(int(members[0]), beginning.entries)
        return _Joint(beginning.keys, self._rows(slots), self._rows(np.sort(places[inputs])))

    def _open_windows(self, sequences: Sequences, keys: KeySlots) -> dict[DecodeWindow, list[Span]]:
        """Rows for the sequences that decode one token."""
        members = np.flatnonzero(np.diff(sequences.input_starts) == 1)
        lengths = keys.counts[members]
        if not members.size or (members.size == 1 and _as_slice(keys.of(members)[0]) is not None):
            return {}  # nothing is faster than to read the pool itself
        return self.windows.open(members, lengths, keys.of)

    def _held_group(
        self, sequences: Sequences, keys: KeySlots, span: Span, places: Int64
    ) -> _Group:
        """Sequences whose keys lie in rows of a window."""
        lengths = keys.counts[span.members]
        first, one = np.zeros_like(lengths), np.ones_like(lengths)
        padded = Padded(sequences, Pieces(span.members, first, one, lengths))
        real = None if span.real.all() else np.flatnonzero(span.real)
        return self._group(padded, keys, places, real, span)

    def _gathered_group(
        self, sequences: Sequences, keys: KeySlots, pieces: list[Piece], places: Int64
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
        keys: KeySlots,
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

        That is with AMX. Without it, 3 query heads a key head take 0.2 to 0.5 of the time together, always.
        """
        if self.cache.dtype != torch.bfloat16 or not self._tiles:
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
        found = self._select(layer, group.key_index, group.batch * group.keys)
        return found.view(group.batch, group.keys, *found.shape[1:])

    def gather_joint(self, layer: int, joint: _Joint) -> torch.Tensor:
        """Keys and values of a shared beginning, `[keys, 2, kv_heads, head_dim]`."""
        return self._select(layer, joint.key_index, joint.keys)

    def _select(self, layer: int, index: Rows, count: int) -> torch.Tensor:
        """Keys and values of so many slots, `[count, 2, kv_heads, head_dim]`; good until the next call."""
        rows: torch.Tensor = self.cache.rows[layer]
        if isinstance(index, slice):
            found = rows[index]
        else:
            width = rows.shape[1]
            needed = count * width
            if self._gathered.numel() < needed:
                # Kept: fresh memory of this size would be mapped anew in every call.
                self._gathered = rows.new_empty(needed)
            found = self._gathered[:needed].view(-1, width)
            torch.index_select(rows, 0, index, out=found)
        return self.cache.unpack(found).view(count, 2, self.cache.kv_heads, self.cache.head_dim)


class _TorchPrepared(PreparedAttention):
    def __init__(
        self,
        backend: TorchAttention,
        order: Int64 | None,
        slots: torch.Tensor,
        groups: list[_Group],
        joint: list[_Joint],
        stores: list[tuple[DecodeWindow, Rows]],
    ) -> None:
        self.order = order
        self._backend = backend
        self._slots = slots
        self._groups = groups
        self._joint = joint
        self._stores = stores

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        keys_values = self._backend.cache.pack(keys_values)
        self._backend.cache.rows[layer].index_copy_(0, self._slots, keys_values)
        for window, rows in self._stores:
            window.store(layer, keys_values[rows])

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        options = self._backend.layers[layer]
        rest = self._attend_groups(layer, queries, options)
        found = rest.found
        for joint in self._joint:
            keys_values = self._backend.gather_joint(layer, joint)
            part = attend_to_beginning(queries[joint.rows], keys_values, options.scale)
            found[joint.rows] = joined(Parts(found[joint.rows], rest.sums[joint.rows]), part)
        return found

    def _attend_groups(self, layer: int, queries: torch.Tensor, options: AttentionOptions) -> Parts:
        """What all queries find in keys of their own; the sums only if there is anything to join."""
        result: Parts | None = None
        for group in self._groups:
            seen = group.seen[options.window]
            keys_values = self._backend.gather(layer, group)
            part = _attend_group(
                queries[group.rows], keys_values, group, seen, options, summed=bool(self._joint)
            )
            if seen.blank is not None:
                part.found.index_fill_(0, seen.blank, 0.0)
            if group.real is not None:
                part = Parts(*(whole.index_select(0, group.real) for whole in part))
            if len(self._groups) == 1 and isinstance(group.targets, slice):
                return part
            if result is None:
                result = Parts(*(p.new_empty((queries.shape[0], p.shape[1])) for p in part))
            for whole, own in zip(result, part, strict=True):
                whole[group.targets] = own
        assert result is not None
        return result


def _attend_group(
    queries: torch.Tensor,
    keys_values: torch.Tensor,
    group: _Group,
    seen: Visibility,
    options: AttentionOptions,
    *,
    summed: bool,
) -> Parts:
    """Output of one group; the sums `[batch * queries, 0]` unless they are wanted."""
    key, value = keys_values.permute(2, 0, 3, 1, 4).unbind(0)  # [batch, kv_heads, keys, dim]
    heads, dim = queries.shape[1:]
    folded = options.softcap is None and not group.by_head
    if folded:
        # The query heads that share a key head are queries of one head: no key is repeated.
        query = queries.view(group.batch, key.shape[1], -1, dim)
    else:
        query = queries.view(group.batch, group.queries, -1, dim).transpose(1, 2)
    sums = queries.new_empty((group.batch * group.queries, 0))
    if options.softcap is not None:
        scale = options.scale or dim**-0.5
        out = capped_attention(query, key, value, seen, scale, options.softcap)
    elif summed:
        out, found = flash(
            query, key, value, is_causal=seen.causal, attn_mask=seen.mask, scale=options.scale
        )
        found = found if folded else found.transpose(1, 2)
        sums = found.reshape(group.batch * group.queries, heads)
    else:
        out = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=seen.mask,
            is_causal=seen.causal,
            scale=options.scale,
            enable_gqa=not folded,
        )
    out = out if folded else out.transpose(1, 2)
    return Parts(out.reshape(group.batch * group.queries, -1), sums)


def _as_slice(slots: Int64) -> slice | None:
    """The slots as a range, if they are consecutive."""
    first, last = int(slots[0]), int(slots[-1])
    if last - first + 1 == slots.size and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return None
