"""Attention by PyTorch's scaled dot product, on any device.

Sequences are padded into groups of similar size (`groups.py`), so that a layer costs a few calls,
however many sequences there are. While sequences decode, their keys lie side by side in a decode
cache; those of other inputs are gathered by an index that is made once for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.attention import AttentionBackend, AttentionOptions, PreparedAttention
from pie_inference.attention.decode_cache import DecodeCache, DecodeCaches, Span
from pie_inference.attention.groups import (
    Group,
    Groups,
    KeySlots,
    Layout,
    Rows,
    Visibility,
    as_slice,
    rows_of,
)
from pie_inference.attention.recurrent import PreparedStates
from pie_inference.attention.scores import scored_attention
from pie_inference.attention.sequences import Sequences, ranges
from pie_inference.attention.shared_prefix import (
    Parts,
    SharedPrefix,
    attend_to_prefix,
    find_shared_prefixes,
    flash,
    joined,
)
from pie_inference.device import Bool, Int64, upload
from pie_inference.memory.kv_cache import KvCache
from pie_inference.memory.states import States


@dataclass(frozen=True, slots=True)
class _PrefixPart:
    """The keys of a shared prefix, and the inputs that attend to them."""

    keys: int
    key_index: Rows  # [keys] slots
    rows: Rows  # places of the inputs


class TorchAttention(AttentionBackend):
    """Finds keys and values side by side or gathers them, and calls PyTorch's attention."""

    def __init__(
        self,
        cache: KvCache,
        heads: int,
        layers: Sequence[AttentionOptions],
        states: States | None = None,
        history: int = 0,
        fixed: bool = False,
    ) -> None:
        """Serves a cache whose keys are shared by `heads` query heads, for layers with keys and
        values, and for layers with states, which look back at `history` tokens. If `fixed`, what a
        token attends to is computed in one way, whatever else is in the batch (`Groups.tiles`).
        """
        self.cache = cache
        self.layers = layers
        self.decode_caches = DecodeCaches(cache)
        self._groups = Groups(cache, heads, layers)
        self._states, self._history = states, history
        self._device = cache.data.device
        # What a query finds in two sets of keys is joined by the log-sum-exp of its scores in each.
        # Only the CPU kernel returns it, and that one cannot cap scores, and has no sinks.
        self._joins = self._device.type == "cpu" and not any(layer.scored for layer in layers)
        self._fixed = fixed
        self._gathered = cache.data.new_empty(0)

    def prepare(self, sequences: Sequences, ordered: bool = False) -> PreparedAttention:
        """See `AttentionBackend.prepare`. Each stage needs the ones before it."""
        # Copies of the slots that this forward writes are out of date from now on.
        self.cache.stamp(sequences.input_slots)

        states = None
        if self._states is not None:
            states = PreparedStates(sequences, self.cache, self._states, self._history)
            ordered = False  # those layers have the inputs as they are

        if self._fixed:
            written = upload(sequences.input_slots, self._device)
            return _TorchPrepared(self, None, written, self._groups.tiles(sequences), [], [])

        # 1. Shared prefixes are attended to once for all their sequences. The steps below handle
        #    the remaining keys of each sequence.
        prefixes = self._shared_prefixes(sequences)
        own = _without(sequences, prefixes) if prefixes else sequences
        keys = KeySlots(own)

        # 2. Sequences that decode get rows of decode caches.
        spans = self._open_caches(own, keys)
        decoding = _inputs_by_cache(own, spans)

        # 3. The layers get the inputs in the order of those rows, so that a group's queries and the
        #    keys to be stored are ranges, not copies. The others come behind.
        gathered = np.ones(own.input_slots.size, np.bool_)  # [t]
        for inputs in decoding.values():
            gathered[inputs] = False
        order = _layer_order(decoding, gathered) if ordered and decoding else None
        place = np.arange(gathered.size)
        if order is not None:
            place[order] = np.arange(order.size)
        layout = Layout(own, keys, place)

        # 4. A group for each range of rows, then groups of what must be gathered.
        groups = [self._groups.cached(layout, span) for some in spans.values() for span in some]
        groups += self._groups.gathered(layout, gathered)

        # 5. Where keys and values go: each into its slot of the pool, and those of decoding
        #    sequences also into their rows, which `DecodeCache.store` wants in the rows' order.
        slots = own.input_slots if order is None else own.input_slots[order]
        stores = [
            (cache, rows_of(layout.place[inputs], self._device))
            for cache, inputs in decoding.items()
        ]
        parts = [self._prefix_part(sequences, prefix, layout.place) for prefix in prefixes]
        found = _TorchPrepared(self, order, upload(slots, self._device), groups, parts, stores)
        found.states = states
        return found

    def _shared_prefixes(self, s: Sequences) -> list[SharedPrefix]:
        """The prefix that sequences share, if every layer lets their inputs see all of it."""
        if not self._joins or s.input_starts.size < 3:  # a sequence alone shares nothing
            return []
        able = ~s.pages.masked & (np.diff(s.input_starts) > 0)
        able[list(s.visible)] = False
        found = find_shared_prefixes(s, able)
        if not self._groups.windows:
            return found
        # A prefix that a sliding window hides in part would be another one for each input.
        sliding = [window for window in self._groups.windows if isinstance(window, int)]
        if len(sliding) < len(self._groups.windows):
            return []
        nearest = min(sliding)
        return [prefix for prefix in found if self._reach(s, prefix) < nearest]

    def _reach(self, s: Sequences, prefix: SharedPrefix) -> int:
        """The largest distance, in positions, of an input from a key of a shared prefix."""
        last = max(
            int(s.positions[slice(*s.input_starts[i : i + 2].tolist())].max())
            for i in prefix.members.tolist()
        )
        slots = s.first_slots(int(prefix.members[0]), prefix.entries)
        return last - int(self.cache.positions[slots].min())

    def _prefix_part(self, s: Sequences, prefix: SharedPrefix, place: Int64) -> _PrefixPart:
        members = prefix.members
        inputs = ranges(s.input_starts[members], np.diff(s.input_starts)[members])
        slots = s.first_slots(int(members[0]), prefix.entries)
        return _PrefixPart(
            prefix.keys,
            rows_of(slots, self._device),
            rows_of(np.sort(place[inputs]), self._device),
        )

    def _open_caches(self, s: Sequences, keys: KeySlots) -> dict[DecodeCache, list[Span]]:
        """Rows of decode caches for the sequences that decode one token."""
        members = np.flatnonzero(np.diff(s.input_starts) == 1)
        lengths = keys.counts[members]
        # One sequence whose slots are consecutive is read from the pool itself: nothing is faster.
        if not members.size or (members.size == 1 and as_slice(keys.of(members)[0]) is not None):
            return {}
        return self.decode_caches.open(members, lengths, keys.of)

    def gather(self, layer: int, group: Group) -> torch.Tensor:
        """Keys and values of a group, `[batch, keys, 2, kv_heads, head_dim]`."""
        if group.cached is not None:
            span = group.cached
            return self.cache.split(span.cache.read(layer, span.rows, group.keys))
        found = self._select(layer, group.key_index, group.batch * group.keys)
        return found.view(group.batch, group.keys, *found.shape[1:])

    def gather_prefix(self, layer: int, part: _PrefixPart) -> torch.Tensor:
        """Keys and values of a shared prefix, `[keys, 2, kv_heads, head_dim]`."""
        return self._select(layer, part.key_index, part.keys)

    def _select(self, layer: int, index: Rows, count: int) -> torch.Tensor:
        """Keys and values of slots, `[count, 2, kv_heads, head_dim]`, valid until the next call."""
        rows: torch.Tensor = self.cache.rows[layer]
        if isinstance(index, slice):
            found = rows[index]
        else:
            width = rows.shape[1]
            needed = count * width
            if self._gathered.numel() < needed:
                # Kept between calls: the system would map fresh memory of this size in each.
                self._gathered = rows.new_empty(needed)
            found = self._gathered[:needed].view(-1, width)
            torch.index_select(rows, 0, index, out=found)
        return self.cache.split(found)


def _without(s: Sequences, prefixes: list[SharedPrefix]) -> Sequences:
    """Sequences without the pages of their shared prefixes."""
    entries = np.zeros(s.input_starts.size - 1, np.int64)  # [n] of each sequence's page table
    for prefix in prefixes:
        entries[prefix.members] = prefix.entries
    return s.without(entries)


def _inputs_by_cache(
    s: Sequences, spans: dict[DecodeCache, list[Span]]
) -> dict[DecodeCache, Int64]:
    """The input of each sequence in a decode cache, in the order of its rows.

    A row between that is read though no sequence of this forward has it (`Span.real`) has no input.
    """
    return {
        cache: s.input_starts[np.concatenate([span.members[span.real] for span in some])]
        for cache, some in spans.items()
    }


def _layer_order(decoding: dict[DecodeCache, Int64], gathered: Bool) -> Int64 | None:
    """`[t]` the input at each place; None if places and inputs are the same."""
    order = np.concatenate([*decoding.values(), np.flatnonzero(gathered)])
    return None if (order == np.arange(order.size)).all() else order


class _TorchPrepared(PreparedAttention):
    def __init__(
        self,
        backend: TorchAttention,
        order: Int64 | None,
        slots: torch.Tensor,
        groups: list[Group],
        prefixes: list[_PrefixPart],
        stores: list[tuple[DecodeCache, Rows]],
    ) -> None:
        self.order = order
        self._backend = backend
        self._slots = slots
        self._groups = groups
        self._prefixes = prefixes
        self._stores = stores

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        keys_values = self._backend.cache.pack(keys_values)
        self._backend.cache.rows[layer].index_copy_(0, self._slots, keys_values)
        for cache, rows in self._stores:
            cache.store(layer, keys_values[rows])

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        options = self._backend.layers[layer]
        rest = self._attend_groups(layer, queries, options, sinks)
        found = rest.found
        for prefix in self._prefixes:
            keys_values = self._backend.gather_prefix(layer, prefix)
            part = attend_to_prefix(queries[prefix.rows], keys_values, options.scale)
            found[prefix.rows] = joined(Parts(found[prefix.rows], rest.sums[prefix.rows]), part)
        return found

    def _attend_groups(
        self,
        layer: int,
        queries: torch.Tensor,
        options: AttentionOptions,
        sinks: torch.Tensor | None,
    ) -> Parts:
        """The values that queries find in keys of their own; the sums only if there is anything to
        join.
        """
        result: Parts | None = None
        for group in self._groups:
            seen = group.seen[options.window]
            keys_values = self._backend.gather(layer, group)
            part = _attend_group(
                queries[group.rows],
                keys_values,
                group,
                seen,
                options,
                sinks,
                summed=bool(self._prefixes),
            )
            if seen.blank is not None:
                part.found.index_fill_(0, seen.blank, 0.0)
            if group.real is not None:
                part = Parts(*(whole.index_select(0, group.real) for whole in part))
            # The usual step of decoding: one group, in the order of the layers. Nothing is copied.
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
    group: Group,
    seen: Visibility,
    options: AttentionOptions,
    sinks: torch.Tensor | None,
    *,
    summed: bool,
) -> Parts:
    """Output of one group; the sums `[batch * queries, 0]` unless they are wanted."""
    key, value = keys_values.permute(2, 0, 3, 1, 4).unbind(0)  # [batch, kv_heads, keys, dim]
    heads, dim = queries.shape[1:]
    folded = not options.scored and not group.by_head
    if folded:
        # The query heads that share a key head are queries of one head: no key is repeated.
        query = queries.view(group.batch, key.shape[1], -1, dim)
    else:
        query = queries.view(group.batch, group.queries, -1, dim).transpose(1, 2)
    sums = queries.new_empty((group.batch * group.queries, 0))
    if options.scored:
        out = scored_attention(query, key, value, seen, options, sinks)
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
