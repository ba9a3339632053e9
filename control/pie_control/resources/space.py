"""The pages, embeds and samplers that one instance holds of one model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from pie_control.errors import ApiError, Shortage, exceeded, invalid
from pie_control.resources.addresses import Addresses, host_pages_of, is_on_host
from pie_control.resources.pools import Defer, EmbedPool, HostPages, PagePool
from pie_control.resources.samplers import Samplers
from pie_py.wire.plan import Int32, Uint32


class PageWatcher(Protocol):
    """Observes page changes that no command causes."""

    def forget(self, pages: Int32) -> None:
        """The instance holds these pages no longer."""

    def truncated(self, pages: Int32, used: list[int], old_stamps: list[int]) -> None:
        """Pages were cut to fewer slots, which has changed their stamps."""


class Space:
    """The pages, embeds and samplers that one instance holds of one model.

    `offload.py` moves pages out of the pool and back; their addresses stay.
    """

    def __init__(
        self,
        page_pool: PagePool,
        embed_pool: EmbedPool,
        max_pages: int | None,
        max_embeds: int | None,
        samplers: Samplers,
        host: HostPages,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.page_pool = page_pool
        self.embed_pool = embed_pool
        self.samplers = samplers
        self.host = host
        self.pages = Addresses("page", clock)
        self.embeds = Addresses("embed")
        self._max_pages = max_pages
        self._max_embeds = max_embeds
        self.watcher: PageWatcher | None = None  # once the instance asks for shared prefixes
        self._pages_leaving = 0  # freed by the instance, but named by commands that are not sent
        self._embeds_leaving = 0

    @property
    def pages_held(self) -> int:
        """Pages that come back, unless others hold them too, when the instance ends."""
        return self.pages.resident + self._pages_leaving

    @property
    def embeds_held(self) -> int:
        """Embeds that come back when the instance ends."""
        return self.embeds.live + self._embeds_leaving

    def check_new_pages(self, count: int) -> None:
        """Refuses a number of new pages that the instance can never have. Comes before any wait.

        Raises:
            ApiError: `invalid-argument`, `limit-exceeded`, `out-of-resources`.
        """
        self.check_page_limit(count)
        _check_size(self.page_pool, "page", count)

    def allocate_pages(self, count: int, reclaim: Callable[[int], bool]) -> int:
        """Allocates empty pages, and returns the first address. `reclaim` frees what others hold
        until so many are free; it returns whether they are.

        Raises:
            ApiError: as `check_new_pages`; `out-of-resources` if they are not free now.
        """
        pages = self.take_pages(count, reclaim)
        try:
            return self.pages.map(pages)
        except ApiError:
            self.page_pool.release(pages)
            raise

    def take_pages(self, count: int, reclaim: Callable[[int], bool]) -> Int32:
        """Takes empty pages that have no addresses yet. As `allocate_pages`."""
        self.check_new_pages(count)
        _ensure_free(self.page_pool, "page", count, reclaim)
        return self.page_pool.allocate(count)

    def allocate_embeds(self, count: int, reclaim: Callable[[int], bool]) -> int:
        """Allocates embeds and returns the first address. As `allocate_pages`."""
        pool = self.embed_pool
        held = self.embeds.resident
        _check_limit(held, self._embeds_leaving, "embed", count, self._max_embeds)
        _check_size(pool, "embed", count)
        _ensure_free(pool, "embed", count, reclaim)
        embeds = pool.allocate(count)
        try:
            return self.embeds.map(embeds)
        except ApiError:
            pool.release(embeds)
            raise

    def free_pages(self, spans: list[int], defer: Defer) -> None:
        """Ends the addresses at once; the pages come back when `defer` calls back.

        Raises:
            ApiError: `invalid-handle`.
        """
        self.release_later(self.pages.unmap(spans), defer)

    def release_later(self, entries: Int32, defer: Defer) -> None:
        """Gives back what addresses had, in pool and host, when `defer` calls back."""
        pages = entries[entries >= 0]
        if self.watcher is not None:
            self.watcher.forget(pages)
        on_host = host_pages_of(entries[is_on_host(entries)])

        def release() -> None:
            self._pages_leaving -= len(pages)
            self.page_pool.release(pages)
            self.host.release(on_host)

        if len(pages) or len(on_host):
            self._pages_leaving += len(pages)
            defer(pages.tolist(), [], release)

    def truncate_pages(self, pages: Int32, used: Uint32) -> None:
        """Empties the slots of distinct pages `[n]` from numbers `[n]` on, at most those filled."""
        pool = self.page_pool
        pool.used[pages] = used
        visible = (np.uint64(1) << used.astype(np.uint64)) - np.uint64(1)
        stamps = pool.stamps[pages]
        pool.set_masks(pages, pool.masks[pages] & visible.astype(np.uint32))
        if self.watcher is not None:
            self.watcher.truncated(pages, used.tolist(), stamps.tolist())

    def free_embeds(self, spans: list[int], defer: Defer) -> None:
        """Ends addresses at once; their embeds come back when `defer` calls back."""
        embeds = self.embeds.unmap(spans)

        def release() -> None:
            self._embeds_leaving -= len(embeds)
            self.embed_pool.release(embeds)

        if len(embeds):
            self._embeds_leaving += len(embeds)
            defer([], embeds.tolist(), release)

    def check_page_limit(self, count: int) -> None:
        """Refuses to hold `count` more pages than the instance may.

        Raises:
            ApiError: `limit-exceeded`.
        """
        held = self.pages.resident
        _check_limit(held, self._pages_leaving, "page", count, self._max_pages)

    def import_pages(self, pages: Int32) -> int:
        """Maps pages that others hold, too, and returns the first address.

        Raises:
            ApiError: `limit-exceeded`.
        """
        self.check_page_limit(len(pages))
        first = self.pages.map(pages)
        self.page_pool.retain(pages)
        return first

    def close(self) -> None:
        """Gives everything back. Idempotent."""
        entries = self.pages.unmap_all()
        self.page_pool.release(entries[entries >= 0])
        self.host.release(host_pages_of(entries[is_on_host(entries)]))
        self.embed_pool.release(self.embeds.unmap_all())
        self.samplers.close()


def _check_limit(held: int, leaving: int, what: str, count: int, limit: int | None) -> None:
    """Refuses more than the limit. What leaves is freed, but still taken: as much again, so that a
    full instance can free and allocate.
    """
    if limit is None:
        return
    if held + count > limit:
        raise exceeded(
            f"{held} {what}s held and {count} more asked for; an instance may hold {limit}: free"
            " what is not needed (a Context does it in `with`, or by `release`), or ask the"
            " operator for higher `limits`"
        )
    if held + leaving + count > 2 * limit:
        raise exceeded(
            f"{count} {what}s asked for while {leaving} freed ones, which commands that have yet to"
            f" run name, are taken; wait for those commands (an instance may hold {limit} at a"
            " time)"
        )


def _check_size(pool: PagePool | EmbedPool, what: str, count: int) -> None:
    if count == 0:
        raise invalid(f"0 {what}s asked for; ask for at least one")
    if count > pool.size:
        raise ApiError(
            "out-of-resources", f"{count} {what}s asked for, and the model has {pool.size} in all"
        )


def _ensure_free(
    pool: PagePool | EmbedPool,
    what: str,
    count: int,
    reclaim: Callable[[int], bool],
) -> None:
    if count > pool.free and not reclaim(count):
        raise Shortage(
            f"{count} {what}s asked for, {pool.free} of {pool.size} are free, and the others belong"
            " to instances launched earlier, or to users within their parts; free some",
            "out-of-resources",
        )
