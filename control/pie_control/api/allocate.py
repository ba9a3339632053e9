"""Trait `allocate`: KV pages and embeds of an instance, and exports that instances share."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np

from pie_control.api.binder import queue_of
from pie_control.api.offload import filled_slots
from pie_control.api.text import positions_of
from pie_control.errors import ApiError, exceeded, invalid
from pie_control.instances.instance import Instance
from pie_control.scheduler.commands.embeds import CopyEmbedCommand
from pie_control.scheduler.commands.pages import CopyKvCommand
from pie_py.config.limits import MAX_PRIORITY
from pie_py.wire.plan import Int32, Uint32


def alloc_kvpage(instance: Instance, queue: int, count: int) -> Any:
    """Allocates empty pages; if none are free, the call may wait until others make way."""
    target = queue_of(instance, queue, "allocate")
    model, space = target.model, target.space
    space.check_new_pages(count)
    take = partial(space.allocate_pages, count, partial(model.reclaim.end_younger, instance))
    return model.take_pages(instance, count, take)


def dealloc_kvpage(instance: Instance, queue: int, pages: list[int]) -> None:
    """Frees pages once the commands queued before have been sent."""
    target = queue_of(instance, queue, "allocate")
    target.space.free_pages(pages, target.defer)


def export_kvpage(
    instance: Instance, queue: int, pages: list[int], name: str, shared: bool
) -> None:
    """Publishes pages under a name."""
    target = queue_of(instance, queue, "allocate")
    service = target.model
    physical = target.space.pages.find(pages, service.pages.size)
    service.exports.check(instance.user, name, physical, shared)
    if service.scheduler.writes_pending(instance, set(physical.tolist())):
        raise ApiError(
            "busy", f"a queued command still writes a page of export {name!r}: synchronize first"
        )
    service.exports.add(instance.user, name, physical, shared)


def import_kvpage(instance: Instance, queue: int, name: str) -> list[int]:
    """Maps exported pages, read-only."""
    target = queue_of(instance, queue, "allocate")
    pages = target.model.exports.use(instance.user, name)
    return [target.space.import_pages(pages), len(pages)]


def list_exports(instance: Instance, queue: int) -> list[str]:
    """Names that this user may import."""
    return queue_of(instance, queue, "allocate").model.exports.names(instance.user)


def release_export(instance: Instance, queue: int, name: str) -> None:
    """Withdraws an export of this user."""
    queue_of(instance, queue, "allocate").model.exports.release(instance.user, name)


def expire_export(instance: Instance, queue: int, name: str, nanoseconds: int) -> None:
    """Sets after how long without an import an export of this user ends."""
    exports = queue_of(instance, queue, "allocate").model.exports
    exports.expire(instance.user, name, nanoseconds / 1e9)


def retain_kvpage(
    instance: Instance, queue: int, pages: list[int], priority: int, nanoseconds: int
) -> None:
    """Notes what pages are worth when memory is short."""
    target = queue_of(instance, queue, "allocate")
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise invalid(f"priority {priority} is not within -100 to 100")
    pool = target.space.page_pool
    physical = np.unique(target.space.pages.find(pages, pool.size))
    pool.retention.set(physical, priority, target.model.clock() + nanoseconds / 1e9)


def copy_kvpage(
    instance: Instance,
    queue: int,
    source_page: int,
    source_slot: int,
    target_page: int,
    target_slot: int,
    count: int,
) -> None:
    """Copies filled slots from a page to a page."""
    target = queue_of(instance, queue, "allocate")
    space = target.space
    pool = space.page_pool
    source = space.pages.find_one(source_page)
    destination = space.pages.find_one(target_page)
    filled, there = int(pool.used[source]), int(pool.used[destination])
    if count == 0 or source_slot + count > filled:
        raise invalid(
            f"{count} slots from slot {source_slot} on, and page {source_page} has {filled} filled"
        )
    if target_slot > there:
        raise invalid(
            f"slot {target_slot} of page {target_page} would leave empty slots before it: the first"
            f" empty one is {there}"
        )
    if target_slot + count > pool.page_size:
        raise ApiError(
            "page-full",
            f"{count} slots do not fit into page {target_page} from slot {target_slot} on: it has"
            f" {pool.page_size}",
        )
    if pool.immutable[destination]:
        raise ApiError("immutable", f"page {target_page} is exported; copy to a page of your own")
    target.queue.check_room()
    sources = _slots(source, source_slot, count, pool.page_size)
    targets = _slots(destination, target_slot, count, pool.page_size)
    if source == destination and target_slot > source_slot:
        # Within a page the ranges may overlap; from the last slot on, none is read after it is
        # written.
        sources, targets = sources[::-1], targets[::-1]
    pool.used[destination] = max(there, target_slot + count)
    bits = (int(pool.masks[source]) >> source_slot) & ((1 << count) - 1)
    rest = int(pool.masks[destination]) & ~(((1 << count) - 1) << target_slot)
    masks: Uint32 = np.array([rest | bits << target_slot], np.uint32)
    pool.set_masks(np.array([destination], np.int32), masks)
    from_start = not (source_slot or target_slot or there)
    command = CopyKvCommand(sources, targets, source, destination, from_start)
    target.scheduler.enqueue(target.queue, command)


def _slots(page: int, first: int, count: int, page_size: int) -> Int32:
    start = page * page_size + first
    return np.arange(start, start + count, dtype=np.int32)


def kvpage_used(instance: Instance, queue: int, pages: list[int]) -> Any:
    """Filled slots of each page, as if every queued command had run."""
    return filled_slots(queue_of(instance, queue, "allocate"), pages).view(np.uint32)


def truncate_kvpage(instance: Instance, queue: int, pages: list[int], used: Uint32) -> None:
    """Empties the slots of pages from a number on.

    The worker need not know: what it reads of a page is said with each command, and the commands
    that refill the slots run after all earlier commands that read or wrote them.
    """
    space = queue_of(instance, queue, "allocate").space
    pool = space.page_pool
    physical = space.pages.find(pages, pool.size)
    if len(used) != len(physical):
        raise invalid(f"{len(used)} fill counts for {len(physical)} pages; give one a page")
    if pool.immutable[physical].any():
        raise ApiError("immutable", "an exported page cannot change; copy it to a page of your own")
    if len(pages) > 2 and len(np.unique(physical)) != len(physical):
        raise invalid("a page is in the list more than once")
    if (used > pool.used[physical]).any():
        i = int(np.argmax(used > pool.used[physical]))
        raise invalid(
            f"fill count {int(used[i])} for page number {i} of the list, which has"
            f" {int(pool.used[physical[i]])} filled slots"
        )
    space.truncate_pages(physical, used)


def alloc_emb(instance: Instance, queue: int, count: int) -> int:
    """Allocates embeds; if none are free, younger instances make way."""
    target = queue_of(instance, queue, "allocate")
    pool = target.space.embed_pool
    target.model.shares.embeds.check(instance.user, count, pool.free)
    return target.space.allocate_embeds(count, partial(target.model.reclaim.embeds, instance))


def dealloc_emb(instance: Instance, queue: int, embeds: list[int]) -> None:
    """Frees embeds once the commands queued before have been sent."""
    target = queue_of(instance, queue, "allocate")
    target.space.free_embeds(embeds, target.defer)


def copy_emb(
    instance: Instance, queue: int, sources: list[int], targets: list[int], positions: list[int]
) -> None:
    """Copies embeds, to other positions if any are given."""
    target = queue_of(instance, queue, "allocate")
    embeds, pool = target.space.embeds, target.space.embed_pool
    facts = target.model.description
    count = sum(targets[1::2])
    if count > facts.max_batch_tokens:
        raise exceeded(f"{count} copies; {facts.max_batch_tokens} at most: copy in parts")
    copies = embeds.find_list(targets, pool.size)
    originals = embeds.find_list(sources, facts.max_batch_tokens)
    if len(originals) != count:
        raise invalid(f"{len(originals)} embeds to copy into {count}")
    if len(targets) > 2 and len(set(copies)) != count:
        raise invalid("a target is in the list more than once")
    places = positions_of(positions, count, facts.max_position) if positions else [-1] * count
    if not all(map(pool.written.item, originals)):
        raise invalid(
            f"source number {int(np.argmin(pool.written[originals]))} is an embed that nothing was"
            " written to"
        )
    if count == 0:
        return
    target.queue.check_room()
    old = [pool.places[row] for row in originals]
    for row, place, before in zip(copies, places, old, strict=True):
        pool.written[row] = True
        pool.places[row] = before if place < 0 else place
    target.scheduler.enqueue(target.queue, CopyEmbedCommand(originals, places, copies))


def pool_stats(instance: Instance, queue: int) -> str:
    """State of the model's pools and this instance's part, as JSON."""
    space = queue_of(instance, queue, "allocate").space
    return json.dumps(
        {
            "kv_pages": space.page_pool.size,
            "kv_pages_free": space.page_pool.free,
            "kv_pages_cached": space.page_pool.idle,
            "embeds": space.embed_pool.size,
            "embeds_free": space.embed_pool.free,
            "host_pages": space.host.pool.size,
            "host_pages_free": space.host.pool.free,
            "kv_pages_mine": space.pages.resident,
            "host_pages_mine": space.host.held,
            "embeds_mine": space.embeds.live,
        }
    )
