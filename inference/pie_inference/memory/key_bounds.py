"""Bounds of the keys of a page: the least and the largest of each of their numbers.

A query's product with any key of a page is at most what the bounds give (Quest, Tang et al. 2024,
section 3.2). Only pages that are asked for have bounds.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from pie_inference.device import Int64, upload, zeros
from pie_inference.memory.kv_cache import KvCache


class KeyBounds:
    """Least and largest keys of pages: `[layers, pages, kv_heads, 2, head_dim]`.

    It finds out by itself what is stale: a page of which a slot was written
    since, or that has another number of filled slots.
    """

    def __init__(self, cache: KvCache) -> None:
        """Has no page's yet; memory is touched when a page first gets some."""
        self.cache = cache
        self.made: Int64 = np.full(cache.pages, -1, np.int64)  # the pool's clock then
        self.used: Int64 = np.zeros(cache.pages, np.int64)

    @cached_property
    def data(self) -> torch.Tensor:
        """The bounds; of pages without they are nothing."""
        layers, _, _, heads, dim = self.cache.data.shape
        shape = (layers, self.cache.pages, heads, 2, dim)
        return zeros(shape, self.cache.dtype, self.cache.data.device)

    def open(self, pages: Int64, used: Int64) -> BoundsOfPages:
        """Bounds of pages with so many filled slots, of which none is empty, for one forward."""
        cache, size = self.cache, self.cache.page_size
        filled = np.arange(size) < used[:, None]
        written = cache.written[: cache.slots].reshape(-1, size)[pages]
        newest = np.where(filled, written, -1).max(1)
        stale = (newest > self.made[pages]) | (self.used[pages] != used)
        self.made[pages[stale]] = -1  # a forward that fails leaves them unfinished
        return BoundsOfPages(self, pages, pages[stale], used[stale])


class BoundsOfPages:
    """Bounds of some pages in one forward."""

    def __init__(self, bounds: KeyBounds, pages: Int64, stale: Int64, used: Int64) -> None:
        self._bounds, self._stale, self._used = bounds, stale, used
        cache = bounds.cache
        device = cache.data.device
        self.pages = pages.astype(np.int32)
        self._pages = upload(self.pages, device)
        # In the place of an empty slot stands the page's first one.
        offsets = np.arange(cache.page_size)
        slots = stale[:, None] * cache.page_size + np.where(offsets < used[:, None], offsets, 0)
        self._stale_pages, self._slots = upload(stale, device), upload(slots, device)

    def of(self, layer: int) -> torch.Tensor:
        """A layer's, of all pages of the pool: `[pages, kv_heads, 2, head_dim]`."""
        bounds, cache = self._bounds, self._bounds.cache
        found: torch.Tensor = bounds.data[layer]
        if self._stale.size:
            rows = cache.rows[layer].index_select(0, self._slots.flatten())
            keys = cache.split(rows)[:, 0].view(*self._slots.shape, *cache.data.shape[3:])
            found.index_copy_(0, self._stale_pages, torch.stack(torch.aminmax(keys, dim=1), 2))
            if layer == len(cache.rows) - 1:  # all layers of the pages have their bounds
                bounds.made[self._stale], bounds.used[self._stale] = cache.clock, self._used
        return found

    def scores(self, of_layer: torch.Tensor, query: torch.Tensor, scale: float) -> torch.Tensor:
        """The largest that `scale * q·k` can be in each of the pages, float32 `[heads, pages]`, of
        a query `[heads, head_dim]`; consecutive heads share a key head.
        """
        bounds = of_layer.index_select(0, self._pages).float()
        pages, heads, _, dim = bounds.shape
        # A number of the query that is negative has its largest product with the least of the keys.
        query = (query.float() * scale).view(heads, -1, dim)
        more = query.relu()
        both = torch.cat((query - more, more), -1)
        by_head = bounds.view(pages, heads, 2 * dim).permute(1, 2, 0)
        return torch.matmul(both, by_head).view(-1, pages)
