"""Trait `offload`: KV pages out of the pool and back, and what that costs.

The moves are commands of a queue; the addresses of pages stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pie_control.api.binder import queue_of
from pie_control.errors import ApiError, exceeded, unsupported
from pie_control.instances.instance import Instance
from pie_control.interception.advice import MAX_TOOL, Wait, tool_kind
from pie_control.interception.policy_input import Durations
from pie_control.models.model import OpenQueue
from pie_control.models.served import ServedModels
from pie_control.resources.addresses import (
    EMPTY,
    addresses_of,
    entries_of,
    host_pages_of,
    is_on_host,
)
from pie_control.resources.pools import MAX_SWAP_PAGES, swap_parts
from pie_control.scheduler.commands.pages import SwapInCommand, SwapOutCommand
from pie_py.wire.plan import Int32


class OffloadCalls:
    """Moves of pages, and advice about them."""

    def __init__(self, models: ServedModels, durations: Durations) -> None:
        self._models = models
        self._durations = durations

    def kv_costs(self, instance: Instance, model: str) -> str:
        """The costs of moving, recomputing and holding pages, as JSON."""
        service = self._models.service(model)
        service.check_trait("offload")
        costs = service.description.kv_costs
        if costs is None:
            raise unsupported(f"the worker of model {model!r} has not measured its costs")
        return json.dumps(costs)

    def note_wait(self, instance: Instance, tool: str, nanoseconds: int) -> None:
        """Notes how long a wait for a tool has lasted."""
        if len(tool) > MAX_TOOL:
            raise exceeded(f"a tool's name of {len(tool)} characters; {MAX_TOOL} at most")
        self._durations.add(instance.user, tool_kind(tool), nanoseconds / 1e9)


def swap_out(instance: Instance, queue: int, pages: list[int]) -> None:
    """Queues a swap of pages to host memory; the pages are free once it has been sent.

    Pages that are away already stay so. Empty ones take no room on the host.

    Raises:
        ApiError: `invalid-handle`, `busy` (a page that others hold, too), `limit-exceeded`,
            `out-of-resources`; nothing has changed then.
    """
    target = queue_of(instance, queue, "offload")
    space = target.space
    pool, host = space.page_pool, space.host
    entries = space.pages.find_apart(pages, pool.size + host.pool.size)
    at = np.flatnonzero(entries >= 0)
    held = entries[at]
    # Pages of the prefix cache are immutable: a copy is as good, whatever else reads them.
    if (pool.shared(held) & ~pool.cached[held]).any():
        raise ApiError(
            "busy",
            "an export, another instance or another address of yours holds one of the pages, too;"
            " only pages without other references can leave the pool",
        )
    filled = pool.used[held] > 0
    sources = held[filled]
    target.queue.check_room(-(-len(sources) // MAX_SWAP_PAGES))
    share = target.model.shares.host_pages
    share.check(target.queue.owner.user, len(sources), host.pool.free)
    targets = host.allocate(len(sources))
    host.pool.keep_state(targets, pool, sources)
    moved = entries.copy()
    moved[at] = EMPTY
    moved[at[filled]] = entries_of(targets)
    space.pages.set_entries(addresses_of(pages), moved)
    for part in swap_parts(len(sources)):
        target.scheduler.enqueue(
            target.queue, SwapOutCommand(sources[part], targets[part], host.pool.first_name)
        )
    space.release_later(held, target.defer)


def swap_in(instance: Instance, queue: int, pages: list[int]) -> Any:
    """Brings pages back; if none are free, the call may wait until others make way."""
    target = queue_of(instance, queue, "offload")
    model = target.model
    count = _pages_away(target, pages)
    take = partial(_swap_in, target, pages, partial(model.reclaim.end_younger, instance))
    return model.take_pages(instance, count, take) if count else None


def _pages_away(target: OpenQueue, spans: list[int]) -> int:
    """Pages that `_swap_in` takes from the pool.

    Raises:
        ApiError: `invalid-handle`, `limit-exceeded`, `out-of-resources`: `_swap_in` could
            not succeed.
    """
    space = target.space
    entries = space.pages.find_apart(spans, space.page_pool.size + space.host.pool.size)
    count = int(np.count_nonzero(entries < 0))
    if count:
        target.queue.check_room(-(-count // MAX_SWAP_PAGES))
        space.check_new_pages(count)
    return count


def _swap_in(target: OpenQueue, spans: list[int], reclaim: Callable[[int], bool]) -> None:
    """Queues the move of pages back into the pool; those that were empty or given up come back
    empty.

    Pages that are in the pool stay there. `reclaim` is as `Space.allocate_pages` has it.

    Raises:
        ApiError: `out-of-resources`; nothing has changed then.
    """
    space = target.space
    pool, host = space.page_pool, space.host.pool
    entries = space.pages.find_apart(spans, pool.size + host.size)
    at = np.flatnonzero(entries < 0)
    pages = space.take_pages(len(at), reclaim)
    away = entries[at]
    full = is_on_host(away)
    sources, targets = host_pages_of(away[full]), pages[full]
    host.restore_state(sources, pool, targets)
    moved = entries.copy()
    moved[at] = pages
    space.pages.set_entries(addresses_of(spans), moved)
    for part in swap_parts(len(sources)):
        target.scheduler.enqueue(
            target.queue, SwapInCommand(targets[part], sources[part], host.first_name)
        )
    space.release_later(away, target.defer)


def discard(instance: Instance, queue: int, pages: list[int]) -> None:
    """Gives up the content of pages, in the pool or on the host, and the memory that it takes.

    Raises:
        ApiError: `invalid-handle`; nothing has changed then.
    """
    target = queue_of(instance, queue, "offload")
    space = target.space
    entries = space.pages.find_apart(pages, space.page_pool.size + space.host.pool.size)
    space.pages.set_entries(addresses_of(pages), np.full(len(entries), EMPTY, np.int32))
    space.release_later(entries, target.defer)


def advise(instance: Instance, queue: int, pages: list[int], wait: str) -> str:
    """A policy's advice about pages during a wait, as JSON."""
    target = queue_of(instance, queue, "offload")
    space = target.space
    entries = space.pages.find_apart(pages, space.page_pool.size + space.host.pool.size)
    resident = entries[entries >= 0]
    tokens = int(space.page_pool.used[resident].sum())
    return target.model.swap_advice.advise(
        instance, queue, len(resident), tokens, Wait.parse(wait)
    ).model_dump_json()


def filled_slots(target: OpenQueue, spans: list[int]) -> Int32:
    """Filled slots of pages `[n]`, wherever they are; 0 of those that were given up.

    Raises:
        ApiError: `invalid-handle`.
    """
    space = target.space
    most = space.page_pool.size + space.host.pool.size
    if not space.pages.away:
        return space.page_pool.used[space.pages.find(spans, most)]
    entries = space.pages.find_entries(spans, most)
    counts = np.zeros(len(entries), np.int32)
    resident, on_host = entries >= 0, is_on_host(entries)
    counts[resident] = space.page_pool.used[entries[resident]]
    counts[on_host] = space.host.pool.used[host_pages_of(entries[on_host])]
    return counts
