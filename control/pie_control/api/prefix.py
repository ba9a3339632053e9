"""Trait `prefix-cache`: shared prefixes, found by their tokens."""

from __future__ import annotations

from typing import Any

from pie_control.api.adapter import find_adapter
from pie_control.api.binder import queue_of
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance
from pie_control.scheduler.commands.forward import NO_ADAPTER
from pie_py.wire.plan import Uint32


def match_prefix(instance: Instance, queue: int, adapter: str, tokens: Uint32) -> Any:
    """Maps the pages of a cached prefix, or opens a future of pages that are being computed. The
    call waits for room for those in host memory, as it would to compute them again.
    """
    target = queue_of(instance, queue)
    service, space = target.model, target.space
    cache = service.prefixes
    through = find_adapter(instance, target, adapter) if adapter else None
    if not cache.enabled:
        return [], 0
    provenance = cache.begin(space, target.queue.account)
    slot = NO_ADAPTER if through is None else through.slot
    text = tokens.tobytes()
    path = cache.find(instance.user, slot, text, target.queue.priority)
    if path.pending is not None:
        future = instance.futures.create(FutureKind.DONE)
        pending = path.pending
        pending.waiters[future] = None
        future.on_cancel = lambda: pending.waiters.pop(future, None)
        return [], future.handle
    whole = -(-len(tokens) // space.page_pool.page_size)
    room = service.room.hold(
        instance, path.nodes, whole, lambda: instance.futures.create(FutureKind.DONE)
    )
    if room is not None:
        return [], room.handle
    space.check_page_limit(len(path.nodes))

    def use(*, spare: bool = True) -> tuple[list[int], int]:
        nodes = cache.find(instance.user, slot, text, target.queue.priority).nodes
        pages = cache.use(instance, nodes, spare=spare)
        cached = len(pages) * space.page_pool.page_size
        cache.note(len(tokens), cached)
        if not cached:
            return [], 0
        first = space.import_pages(pages)
        instance.cached_tokens += cached
        provenance.follow(pages, text, slot)
        if through is not None:
            through.users.add(instance)  # whose slot is the record's adapter as long as it lives
        return [first, len(pages)], 0

    away = sum(node.page < 0 for node in path.nodes)
    if away <= space.page_pool.free or instance.durable is not None:
        return use(spare=service.has_spare_page())
    return service.take_pages(instance, whole - len(path.nodes) + away, use)


def insert_prefix(instance: Instance, queue: int, pages: list[int]) -> int:
    """Takes pages into the cache, and returns how many of them, from the first on, are in it."""
    target = queue_of(instance, queue)
    space = target.space
    physical = space.pages.find(pages, space.page_pool.size)
    provenance = target.queue.account.provenance
    if provenance is None or len(physical) == 0:
        return 0
    found = provenance.find(physical)
    if found is None:
        return 0
    record, count = found
    return target.model.prefixes.insert(instance, record, count, target.queue.priority)
