"""Queries and keys of a forward as groups: each is one call of a kernel in every layer.

A forward's data is numbered in four ways. The names are used for nothing else in this folder:

- *input*: as the batch lists them, `0 .. t - 1`, one sequence after the other;
- *place*: as the layers have them, `0 .. t - 1`; `place[input]` leads from one to the other;
- *slot*: of the KV pool, where the key and the value of a token lie for good;
- *row*: of a decode cache, where the keys of one sequence lie side by side (`decode_cache.py`).

A *piece* is some consecutive inputs of one sequence with the keys that they may attend to. Pieces
of a group are padded to one number of queries and one of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.attention.base import AttentionOptions
from pie_inference.attention.decode_cache import Span
from pie_inference.attention.pieces import (
    KeySlots,
    Padded,
    Pieces,
    Visibility,
    grouped,
    pieces_of,
    visibility,
)
from pie_inference.attention.sequences import Sequences
from pie_inference.device import upload
from pie_inference.memory.kv_cache import KvCache

MAX_GATHER_BYTES = 64 << 20  # keys and values of a group that are gathered at once
LONG_KEYS = 384  # from so many on one query per head is faster for two threads, too

Bool = NDArray[np.bool_]
Int64 = NDArray[np.int64]
Rows = torch.Tensor | slice  # indices; a slice if they are consecutive, for then nothing is copied


@dataclass(frozen=True, slots=True)
class Layout:
    """One forward's inputs and keys, by what each kind of number leads to."""

    sequences: Sequences
    keys: KeySlots  # slots of each sequence's keys
    place: Int64  # [t] where the layers have each input


@dataclass(frozen=True, slots=True)
class Group:
    """Pieces padded to one size: all arguments of one kernel call, the same in every layer."""

    batch: int  # pieces
    queries: int  # of each, padded
    keys: int  # of each, padded
    cached: Span | None  # rows of a decode cache that hold the keys; then `key_index` is empty
    key_index: Rows  # [batch * keys] slots
    rows: Rows  # [batch * queries] places of the inputs
    real: torch.Tensor | None  # those of them that are not padding; None if all are
    targets: Rows  # places of the real ones
    seen: dict[int | None, Visibility]  # by the sliding window of the layer
    by_head: bool  # one query per head, else heads that share a key head are its queries


def rows_of(indices: Int64, device: torch.device) -> Rows:
    """Indices in the form that costs a layer least."""
    found = as_slice(indices)
    return upload(indices, device) if found is None else found


def as_slice(indices: Int64) -> slice | None:
    """Indices as a range, if they are consecutive."""
    first, last = int(indices[0]), int(indices[-1])
    if last - first + 1 == indices.size and bool((np.diff(indices) == 1).all()):
        return slice(first, last + 1)
    return None


class Groups:
    """Makes the groups of forwards over one cache."""

    def __init__(self, cache: KvCache, heads: int, layers: Sequence[AttentionOptions]) -> None:
        """Takes the number of query heads, and the options of each layer."""
        self._cache = cache
        self._device = cache.data.device
        self._heads = heads
        self.windows = {options.window for options in layers if options.window is not None}
        on_cpu = self._device.type == "cpu"
        self._tiles = on_cpu and bool(torch.cpu.get_capabilities().get("amx_tile"))

    def cached(self, layout: Layout, span: Span) -> Group:
        """Sequences of one input whose keys lie in rows of a decode cache."""
        lengths = layout.keys.counts[span.members]
        first, one = np.zeros_like(lengths), np.ones_like(lengths)
        padded = Padded(layout.sequences, Pieces(span.members, first, one, lengths))
        real = None if span.real.all() else np.flatnonzero(span.real)
        return self._group(layout, padded, real, span)

    def gathered(self, layout: Layout, inputs: Bool) -> list[Group]:
        """Inputs `[t]` whose keys are gathered from the pool in every layer."""
        if not inputs.any():
            return []
        width = self._cache.rows[0].shape[1] * self._cache.data.itemsize  # bytes of a slot
        pieces = pieces_of(layout.sequences, inputs)
        most_keys = max(1, MAX_GATHER_BYTES // width)
        groups = []
        for some in grouped(pieces, most_keys):
            padded = Padded(layout.sequences, Pieces(*np.array(some, np.int64).T))
            real = None
            if (padded.queries != padded.lanes.size).any():
                real = np.flatnonzero((padded.lanes < padded.queries[:, None]).reshape(-1))
            groups.append(self._group(layout, padded, real, None))
        return groups

    def _group(
        self, layout: Layout, padded: Padded, real: Int64 | None, cached: Span | None
    ) -> Group:
        rows = layout.place[padded.rows.reshape(-1)]
        slots = np.empty((0, 0), np.int64)
        # A decode cache needs no slots, but a sliding window masks by their positions.
        if cached is None or self.windows:
            keys = layout.keys
            slots = keys.slots[keys.starts[padded.sequence][:, None] + padded.columns]
        return Group(
            batch=padded.keys.size,
            queries=padded.lanes.size,
            keys=padded.width,
            cached=cached,
            key_index=slice(0, 0) if cached else rows_of(slots.reshape(-1), self._device),
            rows=rows_of(rows, self._device),
            real=None if real is None else upload(real, self._device),
            targets=rows_of(rows if real is None else rows[real], self._device),
            seen=self._seen(padded, slots),
            by_head=padded.lanes.size > 1 or self._by_head(padded.width),
        )

    def _by_head(self, keys: int) -> bool:
        """Whether decoding is faster with one query per head.

        The other way, query heads that share a key head are queries of one head, and no key is read
        twice. But with AMX the CPU kernel for bfloat16 is fast enough to gain nothing by that:
        docs/models.md has what was measured.
        """
        if self._cache.dtype != torch.bfloat16 or not self._tiles:
            return False
        few = self._heads // self._cache.kv_heads <= 3
        return few and (keys >= LONG_KEYS or torch.get_num_threads() == 1)

    def _seen(self, padded: Padded, slots: Int64) -> dict[int | None, Visibility]:
        """The queries' masks, for every sliding window of a layer; None is for no window."""
        dtype = self._cache.dtype
        everything = padded.everything(dtype, self._device)
        found: dict[int | None, Visibility] = {None: everything}
        if not self.windows:
            return found
        positions = self._cache.positions[slots]
        for window in self.windows:
            hidden = padded.hidden_by(window, positions)
            # Most contexts are shorter than the window: then the mask of the other layers serves.
            found[window] = (
                everything
                if hidden is None
                else visibility(padded.seen() & ~hidden, dtype, self._device)
            )
        return found
