"""Attention by PyTorch's scaled dot product, on any device.

Sequences are padded into groups of similar size (`groups.py`), so that a layer costs a few calls,
however many sequences there are. Keys are gathered by an index that is made once for all layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from pie_inference.attention import AttentionBackend, AttentionOptions, PreparedAttention
from pie_inference.attention.groups import Group, Groups, Visibility
from pie_inference.attention.recurrent import PreparedStates
from pie_inference.attention.scores import scored_attention
from pie_inference.attention.sequences import Sequences
from pie_inference.device import upload
from pie_inference.memory.kv_cache import KvCache
from pie_inference.memory.states import States


class TorchAttention(AttentionBackend):
    """Gathers keys and values, and calls PyTorch's attention."""

    def __init__(
        self,
        cache: KvCache,
        heads: int,
        layers: Sequence[AttentionOptions],
        states: States | None = None,
        fixed: bool = False,
    ) -> None:
        """Serves a cache whose keys are shared by `heads` query heads, for layers with keys and
        values, and for layers with states. If `fixed`, what a token attends to is computed in one
        way, whatever else is in the batch (`Groups.tiles`).
        """
        self.cache = cache
        self.layers = layers
        self._groups = Groups(cache, heads, layers)
        self._states, self._fixed = states, fixed
        self._gathered = cache.data.new_empty(0)

    def prepare(self, sequences: Sequences) -> PreparedAttention:
        """See `AttentionBackend.prepare`."""
        self.cache.stamp(sequences.input_slots)
        groups = (self._groups.tiles if self._fixed else self._groups.gathered)(sequences)
        slots = upload(sequences.input_slots, self.cache.data.device)
        found = _TorchPrepared(self, slots, groups)
        if self._states is not None:
            found.states = PreparedStates(sequences, self._states)
        return found

    def gather(self, layer: int, group: Group) -> torch.Tensor:
        """Keys and values of a group, `[batch, keys, 2, kv_heads, head_dim]`, valid until the next
        call.
        """
        rows: torch.Tensor = self.cache.rows[layer]
        index = group.key_index
        if isinstance(index, slice):
            found = rows[index]
        else:
            width = rows.shape[1]
            needed = group.batch * group.keys * width
            if self._gathered.numel() < needed:
                # Kept between calls: the system would map fresh memory of this size in each.
                self._gathered = rows.new_empty(needed)
            found = self._gathered[:needed].view(-1, width)
            torch.index_select(rows, 0, index, out=found)
        parts = self.cache.split(found)
        return parts.view(group.batch, group.keys, *parts.shape[1:])


class _TorchPrepared(PreparedAttention):
    def __init__(self, backend: TorchAttention, slots: torch.Tensor, groups: list[Group]) -> None:
        self._backend, self._slots, self._groups = backend, slots, groups

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        cache = self._backend.cache
        cache.rows[layer].index_copy_(0, self._slots, cache.pack(keys_values))

    def attend(
        self, layer: int, queries: torch.Tensor, sinks: torch.Tensor | None = None
    ) -> torch.Tensor:
        options = self._backend.layers[layer]
        result: torch.Tensor | None = None
        for group in self._groups:
            seen = group.seen[options.window]
            keys_values = self._backend.gather(layer, group)
            found = _attend_group(queries[group.rows], keys_values, group, seen, options, sinks)
            if seen.blank is not None:
                found.index_fill_(0, seen.blank, 0.0)
            if group.real is not None:
                found = found.index_select(0, group.real)
            # The usual step of decoding: one group, in the order of the inputs.
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
    group: Group,
    seen: Visibility,
    options: AttentionOptions,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Output of one group."""
    key, value = keys_values.permute(2, 0, 3, 1, 4).unbind(0)  # [batch, kv_heads, keys, dim]
    # The query heads that share a key head are queries of one head: no key is repeated.
    folded = not options.scored and group.queries == 1
    if folded:
        query = queries.view(group.batch, key.shape[1], -1, queries.shape[2])
    else:
        query = queries.view(group.batch, group.queries, -1, queries.shape[2]).transpose(1, 2)
    if options.scored:
        out = scored_attention(query, key, value, seen, options, sinks)
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
    return out.reshape(group.batch * group.queries, -1)
