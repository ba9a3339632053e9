"""Keys and values of sequences that decode together, kept side by side from one forward to the next.

Without it every layer of every step gathers the whole context of every sequence from its pages. With
it a step copies one token a sequence: the one it stores in the pool, too.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.kv_cache import KvCache
from pie_inference.upload import upload

MAX_BYTES = 256 << 20  # of one window, all layers
ROOM = 64  # keys that a window grows by

Int64 = NDArray[np.int64]


class DecodeWindow:
    """A copy of some slots of the pool, `[layers, batch, keys, 2, kv_heads, head_dim]`.

    It remembers which slot each place is a copy of and when it was made; what has another slot now, or
    a slot that was written since, is copied anew. So it needs no notice of what happens to pages, and
    serves whatever sequences come; it pays when they are those of the step before.
    """

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._slots: Int64 = np.empty((0, 0), np.int64)  # [batch, keys] slot of each place
        self._memory: list[torch.Tensor] = []  # of the largest size so far, a layer each
        self._layers: list[torch.Tensor] = []  # [batch * keys, 2 * kv_heads * head_dim] of it
        self._clock = -1  # of the pool, when the copies were made
        self._whole = False  # all layers were brought up to date
        self._stale: torch.Tensor | None = None  # places to copy in every layer
        self._sources = torch.empty(0, dtype=torch.int64)  # their slots
        self._own = self._sources  # places of this forward's inputs

    def fits(self, batch: int, keys: int) -> bool:
        """Whether a window of this size is worth its memory."""
        cache = self._cache
        return batch * (keys + ROOM) * cache.data[:, 0].numel() * cache.data.itemsize <= MAX_BYTES

    def open(self, slots: Int64, lengths: Int64) -> None:
        """Begins a forward.

        Args:
            slots: `[batch, keys]` of each sequence's keys, its input's last; then anything.
            lengths: `[batch]` keys of each sequence.
        """
        batch, keys = slots.shape
        if self._slots.shape[0] != batch or self._slots.shape[1] < keys:
            self._resize(batch, -(-(keys + ROOM) // ROOM) * ROOM)
        room = self._slots.shape[1]
        # Places beyond a sequence's end hold its first key: nothing of another sequence comes in.
        wanted = np.repeat(slots[:, :1], room, axis=1)
        real = np.arange(keys) < lengths[:, None]
        wanted[:, :keys][real] = slots[real]
        stale = wanted != self._slots
        stale |= self._cache.written[wanted] > self._clock
        if not self._whole:
            stale[:] = True
        rows = np.arange(batch)
        stale[rows, lengths - 1] = False  # `store` writes these
        places = np.flatnonzero(stale)
        self._stale = self._tensor(places) if places.size else None
        self._sources = self._tensor(wanted.reshape(-1)[places])
        self._own = self._tensor(rows * room + lengths - 1)
        self._slots = wanted
        self._clock = self._cache.clock
        self._whole = False

    def store(self, layer: int, keys_values: torch.Tensor) -> None:
        """Writes the inputs' keys and values `[batch, 2 * kv_heads * head_dim]`."""
        self._layers[layer].index_copy_(0, self._own, keys_values)

    def read(self, layer: int, keys: int) -> torch.Tensor:
        """Keys and values `[batch, keys, 2, kv_heads, head_dim]`, after `store` of the layer."""
        data = self._layers[layer]
        if self._stale is not None:
            rows = self._cache.rows[layer].index_select(0, self._sources)
            data.index_copy_(0, self._stale, rows)
        if layer == len(self._layers) - 1:
            self._whole = True
        batch, room = self._slots.shape
        cache = self._cache
        return data.view(batch, room, 2, cache.kv_heads, cache.head_dim)[:, :keys]

    def _resize(self, batch: int, room: int) -> None:
        rows = self._cache.rows
        if not self._memory or self._memory[0].shape[0] < batch * room:
            self._memory = [layer.new_zeros((batch * room, layer.shape[1])) for layer in rows]
        self._layers = [layer[: batch * room] for layer in self._memory]
        self._slots = np.full((batch, room), -1, np.int64)

    def _tensor(self, array: Int64) -> torch.Tensor:
        return upload(array, self._cache.data.device)
