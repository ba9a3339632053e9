"""The pool of swapped pages: host memory, pinned if the KV pool lies on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from pie_inference.kv_cache import KvCache
from pie_inference.memory import zeros
from pie_inference.upload import upload_index

STAGING_BYTES = 64 << 20  # of the pages gathered at once

Int32 = NDArray[np.int32]


class HostPool:
    """Pages as `[host pages, layers, page_size * 2 * kv_heads * head_dim]`.

    A page is one block here, so that a transfer is a few large copies, however many layers there are.
    On a GPU the copies run in the order of its stream, like the kernels before and after them, and
    nothing waits for them.
    """

    def __init__(self, cache: KvCache, pages: int) -> None:
        """Allocates memory for as many pages of the cache."""
        self.pages = pages
        self._cache = cache
        layers, _, *token = cache.data.shape
        self._block = cache.page_size * int(np.prod(token))  # numbers a page and layer
        shape = (pages, layers, self._block)
        self._on_cpu = cache.data.device.type == "cpu"
        self._data = (
            zeros(shape, cache.data.dtype, cache.data.device)
            if self._on_cpu
            else torch.empty(shape, dtype=cache.data.dtype, pin_memory=True)
        )
        # [layers, pages, numbers], a view of the KV pool
        self._resident = cache.data[:, : cache.slots].view(layers, cache.pages, self._block)
        self._masked: NDArray[np.bool_] = np.zeros((pages, cache.page_size), np.bool_)
        self._positions: Int32 = np.zeros((pages, cache.page_size), np.int32)
        self._step = max(1, STAGING_BYTES // (layers * self._block * cache.data.itemsize))

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self._data.shape[1] * self._block * self._data.itemsize

    def swap_out(self, pages: Int32, hosts: Int32) -> None:
        """Copies pages, with positions and masks, to host pages that are all different."""
        slots = self._slots(pages)
        self._masked[hosts] = self._cache.masked[slots]
        self._positions[hosts] = self._cache.positions[slots]
        for first in range(0, pages.size, self._step):
            part = slice(first, first + self._step)
            staged = self._resident.index_select(1, self._index(pages[part])).transpose(0, 1)
            staged = staged.contiguous()
            for at, host in _runs(hosts[part]):
                self._data[host].copy_(staged[at], non_blocking=True)

    def swap_in(self, hosts: Int32, pages: Int32) -> None:
        """Copies host pages, with positions and masks, to pages that are all different."""
        slots = self._slots(pages)
        self._cache.stamp(slots)
        self._cache.masked[slots] = self._masked[hosts]
        self._cache.positions[slots] = self._positions[hosts]
        for first in range(0, pages.size, self._step):
            part = slice(first, first + self._step)
            staged = self._resident.new_empty((pages[part].size, *self._data.shape[1:]))
            for at, host in _runs(hosts[part]):
                staged[at].copy_(self._data[host], non_blocking=True)
            self._resident.index_copy_(1, self._index(pages[part]), staged.transpose(0, 1))

    def clear(self, hosts: Int32) -> None:
        """Writes zeros into host pages."""
        self._masked[hosts] = False
        self._positions[hosts] = 0
        if hosts.size and not self._on_cpu:
            torch.cuda.synchronize(self._cache.data.device)  # copies may be under way
        for host in hosts.tolist():
            self._data[host].zero_()

    def _slots(self, pages: Int32) -> NDArray[np.int64]:
        """Slots of pages, `[n, page_size]`."""
        size = self._cache.page_size
        return pages[:, None].astype(np.int64) * size + np.arange(size)

    def _index(self, pages: Int32) -> torch.Tensor:
        return upload_index(pages, self._resident.device)


def _runs(hosts: Int32) -> Iterator[tuple[slice, slice]]:
    """Runs of consecutive host pages: where they are in the list, and which they are."""
    cuts = np.flatnonzero(np.diff(hosts) != 1) + 1
    for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), hosts.size], strict=True):
        first = int(hosts[start])
        yield slice(start, end), slice(first, first + end - start)
