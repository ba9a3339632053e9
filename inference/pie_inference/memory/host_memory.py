"""The pool of swapped pages: host memory, pinned if the KV pool lies on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch

from pie_inference.device import Bool, Int32, Int64, passed, upload_index, zeros
from pie_inference.memory.kv_cache import KvCache

STAGING_BYTES = 64 << 20  # of the pages gathered at once
# Pinned at once: PyTorch rounds up to a power of two, which must not be one of the whole pool.
PINNED_BYTES = 1 << 30


class HostMemory:
    """Pages as parts of `[host pages, numbers of a page]`: one layer after the other.

    A page is one block here, so that a transfer is a few large copies, however many layers there
    are. On a GPU the copies run beside its kernels, those out and those in on a stream each: pages
    that come in are waited for by the kernels after them alone, and the host waits for none.
    """

    def __init__(self, cache: KvCache, pages: int) -> None:
        """Allocates memory for as many pages of the cache."""
        self.pages = pages
        self._cache = cache
        # [layers, pages, numbers], views of the KV pool's parts
        self._resident = [
            pool[:, : cache.slots].reshape(pool.shape[0], cache.pages, -1) for pool in cache.pools
        ]
        self._sizes = [part.shape[0] * part.shape[2] for part in self._resident]  # of a page
        self._on_cpu = cache.data.device.type == "cpu"
        self._page = (sum(self._sizes),)
        dtype = cache.data.dtype
        self.page_bytes = self._page[0] * dtype.itemsize
        if self._on_cpu:
            self._part = max(1, pages)  # pages
            self._parts = [zeros((pages, *self._page), dtype, cache.data.device)]
        else:
            self._part = max(1, PINNED_BYTES // self.page_bytes)
            self._parts = [
                torch.empty(
                    (min(self._part, pages - first), *self._page), dtype=dtype, pin_memory=True
                )
                for first in range(0, pages, self._part)
            ]
        self._masked: Bool = np.zeros((pages, cache.page_size), np.bool_)
        self._positions: Int32 = np.zeros((pages, cache.page_size), np.int32)
        self._streams = None if self._on_cpu else _CopyStreams(cache.data.device, pages)
        self._step = max(1, STAGING_BYTES // self.page_bytes)

    def swap_out(self, pages: Int32, hosts: Int32) -> None:
        """Copies pages, with positions and masks, to host pages that are all different."""
        slots = self._slots(pages)
        self._masked[hosts] = self._cache.masked[slots]
        self._positions[hosts] = self._cache.positions[slots]
        for first in range(0, pages.size, self._step):
            part = slice(first, first + self._step)
            # Not `index_select`: of a view with gaps that copies the whole pool first, on a CPU.
            index = self._index(pages[part])
            parts = [part[:, index].transpose(0, 1).flatten(1) for part in self._resident]
            staged = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            with self._leaving(staged, hosts[part]):
                for at, data in self._runs(hosts[part]):
                    data.copy_(staged[at], non_blocking=True)

    def swap_in(self, hosts: Int32, pages: Int32) -> None:
        """Copies host pages, with positions and masks, to pages that are all different."""
        slots = self._slots(pages)
        self._cache.stamp(slots)
        self._cache.masked[slots] = self._masked[hosts]
        self._cache.positions[slots] = self._positions[hosts]
        for first in range(0, pages.size, self._step):
            part = slice(first, first + self._step)
            with self._coming(hosts[part]):
                staged = self._resident[0].new_empty((pages[part].size, *self._page))
                for at, data in self._runs(hosts[part]):
                    staged[at].copy_(data, non_blocking=True)
            if self._streams is not None:
                self._streams.arrived(staged)
            index = self._index(pages[part])
            borders = tuple(np.cumsum(self._sizes)[:-1].tolist())
            for resident, own in zip(self._resident, staged.tensor_split(borders, 1), strict=True):
                by_layer = own.reshape(index.shape[0], resident.shape[0], -1).transpose(0, 1)
                resident.index_copy_(1, index, by_layer)

    def _leaving(self, staged: torch.Tensor, hosts: Int32) -> AbstractContextManager[object]:
        return nullcontext() if self._streams is None else self._streams.leaving(staged, hosts)

    def _coming(self, hosts: Int32) -> AbstractContextManager[object]:
        return nullcontext() if self._streams is None else self._streams.coming(hosts)

    def clear(self, hosts: Int32) -> None:
        """Writes zeros into host pages."""
        self._masked[hosts] = False
        self._positions[hosts] = 0
        if hosts.size and not self._on_cpu:
            torch.cuda.synchronize(self._cache.data.device)  # copies may be under way
        for _, data in self._runs(hosts):
            data.zero_()

    def _runs(self, hosts: Int32) -> Iterator[tuple[slice, torch.Tensor]]:
        """Host pages that lie side by side: where they are in the list, and their memory."""
        if not hosts.size:
            return
        parts, places = np.divmod(hosts, self._part)
        cuts = np.flatnonzero((np.diff(hosts) != 1) | (np.diff(parts) != 0)) + 1
        for start, end in zip([0, *cuts.tolist()], [*cuts.tolist(), hosts.size], strict=True):
            first = int(places[start])
            yield slice(start, end), self._parts[parts[start]][first : first + end - start]

    def _slots(self, pages: Int32) -> Int64:
        """Slots of pages, `[n, page_size]`."""
        size = self._cache.page_size
        return pages[:, None].astype(np.int64) * size + np.arange(size)

    def _index(self, pages: Int32) -> torch.Tensor:
        return upload_index(pages, self._cache.data.device)


class _CopyStreams:
    """The streams of copies between a GPU and host memory."""

    def __init__(self, device: torch.device, hosts: int) -> None:
        self._device = device
        self._out: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # Which of the copies out, counted, a host page was written by last; those under way.
        self._writer: Int64 = np.zeros(hosts, np.int64)
        self._written = 0
        self._under_way: dict[int, torch.cuda.Event] = {}

    @contextmanager
    def leaving(self, staged: torch.Tensor, hosts: Int32) -> Iterator[None]:
        """Within it, what has been staged goes to host pages that nothing reads any more."""
        self._out.wait_stream(torch.cuda.current_stream(self._device))
        self._out.wait_stream(self._in)
        with torch.cuda.stream(self._out):
            yield
        staged.record_stream(self._out)
        self._written += 1
        self._writer[hosts] = self._written
        event = self._out.record_event()
        self._under_way = {n: e for n, e in self._under_way.items() if not passed(e)}
        self._under_way[self._written] = event

    @contextmanager
    def coming(self, hosts: Int32) -> Iterator[None]:
        """Within it, host pages are copied to the device, after they have been written."""
        writer = self._under_way.get(int(self._writer[hosts].max()))
        if writer is not None:
            self._in.wait_event(writer)
        with torch.cuda.stream(self._in):
            yield

    def arrived(self, staged: torch.Tensor) -> None:
        """Lets the current stream go on with what has come in."""
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._in)
        staged.record_stream(current)
