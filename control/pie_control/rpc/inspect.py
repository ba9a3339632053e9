"""One instance from the inside, for people: what it waits for, and which pages it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pie_control.instances.instance import Instance
from pie_control.models.model import ModelService

MOST_PAGES = 1024  # of one model that are told
MOST_SHARERS = 64


def inspect(instance: Instance, services: Sequence[ModelService], scope: str | None) -> Any:
    """What an instance waits for, and its pages, with the user's instances that share them.

    Args:
        instance: alive or ended.
        services: of the served models.
        scope: the user whose instances are named, or None for all.
    """
    return {
        "state": instance.state.value,
        "cpu_ms": instance.cpu_ns / 1e6,
        "waits": waits_of(instance),
        "open_futures": len(instance.futures),
        "queued_commands": instance.queued_commands,
        "blocked": bool(instance.turn.blockers),
        "models": [_pages(instance, service, scope) for service in services],
    }


def waits_of(instance: Instance) -> list[str]:
    """What the guest waits for: kinds of futures; nothing while it runs."""
    awaited = instance.turn.awaited
    if awaited is None:
        return []
    futures = (instance.futures.find(handle) for handle in awaited[:MOST_SHARERS])
    return sorted({future.waits_for for future in futures if future is not None})


def _pages(instance: Instance, service: ModelService, scope: str | None) -> dict[str, Any]:
    """The pages on the device, in the order of their addresses, and who holds them as well."""
    space = service.spaces.get(instance)
    name = service.description.name
    if space is None:
        none: list[Any] = []
        return {
            "model": name,
            "pages": 0,
            "page_size": 0,
            "cached": none,
            "contexts": none,
            "sharers": none,
        }
    addresses, held = space.pages.all_resident()
    shown = held[:MOST_PAGES]
    sharers: list[dict[str, Any]] = []
    for other, its in service.spaces.items():
        if other is instance or (scope is not None and other.user != scope):
            continue
        places = np.flatnonzero(np.isin(shown, its.pages.all_resident()[1]))
        if len(places) and len(sharers) < MOST_SHARERS:
            sharers.append({"instance": other.id, "places": places.tolist()})
    cached = np.flatnonzero(space.page_pool.cached[shown])
    return {
        "model": name,
        "pages": len(held),
        "page_size": space.page_pool.page_size,
        "cached": cached.tolist(),  # places whose pages the prefix cache holds, too
        "contexts": _contexts(instance, service, addresses[:MOST_PAGES]),
        "sharers": sharers,
    }


def _contexts(
    instance: Instance, service: ModelService, addresses: NDArray[np.int64]
) -> list[dict[str, Any]]:
    """Which of the pages each queue's newest forward or run sees and fills.

    The SDKs have a queue for each context, so this shows forks: their first places are the same.
    """
    found: list[dict[str, Any]] = []
    for number, queue in instance.queues.items():
        if queue.model is not service or len(found) == MOST_SHARERS:
            continue
        seen = np.zeros(len(addresses), np.bool_)
        for spans in queue.queue.sees:
            for first, count in zip(spans[::2], spans[1::2], strict=True):
                seen |= (addresses >= first) & (addresses < first + count)
        for run in queue.runs.values():
            seen |= np.isin(addresses, run.pages.addresses)
        if seen.any():
            found.append({"queue": number, "places": np.flatnonzero(seen).tolist()})
    return found
