"""One instance from the inside, for people: what it waits for, and which pages it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

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
        return {"model": name, "pages": 0, "page_size": 0, "cached": [], "sharers": []}
    _, held = space.pages.all_resident()
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
        "sharers": sharers,
    }
