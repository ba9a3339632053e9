"""The paged KV pool of one model and which of its slots are masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.device import Bool, Int32, Int64, upload_index, zeros


class KvCache:
    """Keys and values of every slot: `[layers, slots, 2, kv_heads, head_dim]`; 1 in the place of 2
    for a latent that is both.

    Slot `page * page_size + offset` is one token. Its key is stored rotated, so that it carries its
    position, and its key and value lie side by side, so that storing or gathering a token moves one
    contiguous row. What moves a slot also moves its mask and its position, which windows look at.
    After the last page lie `scratch` slots, for inputs whose key and value are used in their own
    forward only, and one more page, `padding`, for rows that only fill a batch up. Memory of the
    pool is touched when a slot is first written.

    Layers with a state keep what a token writes to it in `recurrent`, `[layers, slots, width]`.

    Numbers of one byte (`stored`) are moved as bytes, for few operations know them; `pack` and
    `unpack` turn rows of the pool into numbers of the model's dtype, and back.
    """

    def __init__(
        self,
        *,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        scratch: int,
        dtype: torch.dtype,
        device: torch.device,
        stored: torch.dtype | None = None,
        latent: bool = False,
        recurrent: tuple[int, int] = (0, 0),
    ) -> None:
        """Allocates the pool, zeroed: `stored` is by default the model's dtype, and `recurrent` is
        how many layers have a state, and the numbers of a slot in each.
        """
        self.pages = pages
        self.page_size = page_size
        self.slots = pages * page_size
        self.scratch = scratch
        self.kv_heads = kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.stored = stored or dtype
        self.padding = pages + -(-scratch // page_size)
        slots = (self.padding + 1) * page_size
        self.latent = latent
        self._parts = 1 if latent else 2
        shape = (layers, slots, self._parts, kv_heads, head_dim)
        self.data = zeros(shape, torch.uint8 if self.stored.itemsize == 1 else dtype, device)
        self.recurrent = zeros((recurrent[0], slots, recurrent[1]), dtype, device)
        self.pools = (self.data, self.recurrent) if recurrent[0] else (self.data,)
        self.rows = [layer.view(slots, -1) for layer in self.data]
        self.masked: Bool = np.zeros(slots, np.bool_)
        self.positions: Int32 = np.zeros(slots, np.int32)
        self.clock = 0  # counts the times at which slots were written
        self.written: Int64 = np.zeros(slots, np.int64)  # the last of them, a slot

    def pack(self, numbers: torch.Tensor) -> torch.Tensor:
        """Numbers of the model's dtype as they are stored."""
        if self.stored == self.dtype:
            return numbers
        most = torch.finfo(self.stored).max  # beyond it, converting makes no number
        return numbers.clamp(-most, most).to(self.stored).view(self.data.dtype)

    def unpack(self, stored: torch.Tensor) -> torch.Tensor:
        """The inverse of `pack`, up to rounding."""
        if self.stored == self.dtype:
            return stored
        return stored.view(self.stored).to(self.dtype)

    def split(self, rows: torch.Tensor) -> torch.Tensor:
        """Keys and values `[..., 2, kv_heads, head_dim]` of stored rows `[..., width]`."""
        shape = (*rows.shape[:-1], self._parts, self.kv_heads, self.head_dim)
        found = self.unpack(rows).view(shape)
        return found if self._parts == 2 else found.expand(*shape[:-3], 2, *shape[-2:])

    def mask(self, pages: Int32, words: NDArray[np.uint32]) -> None:
        """Sets the mask of whole pages: bit `i` of a page's word hides its slot `i`."""
        bits = (words[:, None] >> np.arange(self.page_size, dtype=np.uint32)) & 1
        self.masked[: self.slots].reshape(self.pages, self.page_size)[pages] = bits.astype(np.bool_)

    def stamp(self, slots: NDArray[np.integer[Any]]) -> None:
        """Notes that slots are being written."""
        self.clock += 1
        self.written[slots] = self.clock

    def clear(self, slots: Int32) -> None:
        """Writes zeros into slots, which are live then, at position 0."""
        if slots.size:
            self.stamp(slots)
            self.masked[slots] = False
            self.positions[slots] = 0
            for pool in self.pools:
                pool.index_fill_(1, upload_index(slots, self.data.device), 0)

    def copy(self, sources: Int32, targets: Int32) -> None:
        """Copies slots with their positions and masks, as if one after the other."""
        self.stamp(targets)
        for start, end in _independent_runs(sources, targets):
            source, target = sources[start:end], targets[start:end]
            self.masked[target] = self.masked[source]
            self.positions[target] = self.positions[source]
            for pool in self.pools:
                rows = pool.index_select(1, upload_index(source, self.data.device))
                pool.index_copy_(1, upload_index(target, self.data.device), rows)

    def shift(
        self,
        slots: Int32,
        distances: Int32,
        turned: Callable[[int, torch.Tensor], torch.Tensor],
    ) -> None:
        """Adds distances to the positions of slots that are all different, and turns their keys:
        `turned` gives a layer's `[n, kv_heads, head_dim]`, float32, as they become.
        """
        self.stamp(slots)
        self.positions[slots] += distances
        index = upload_index(slots, self.data.device)
        for layer, rows in enumerate(self.rows):
            parts = self.split(rows.index_select(0, index))
            keys = turned(layer, parts[:, 0].float()).to(self.dtype)
            both = torch.stack([keys, parts[:, 1]], 1)
            rows.index_copy_(0, index, self.pack(both).view(len(slots), -1))


def _independent_runs(sources: Int32, targets: Int32) -> list[tuple[int, int]]:
    """Cuts a list of copies into runs without read or write after write."""
    if np.unique(targets).size == targets.size and not np.isin(sources, targets).any():
        return [(0, sources.size)]
    runs = []
    start = 0
    written: set[int] = set()
    for i, (source, target) in enumerate(zip(sources.tolist(), targets.tolist(), strict=True)):
        if source in written or target in written:
            runs.append((start, i))
            start = i
            written.clear()
        written.add(target)
    runs.append((start, sources.size))
    return runs
