"""Trait `offload`: KV pages out of the pool and back, and what that costs."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from pie_control.api import page_moves
from pie_control.api.binder import queue_of
from pie_control.errors import ApiError
from pie_control.instances.instance import Instance
from pie_control.interception.advice import MAX_TOOL, Wait, tool_kind
from pie_control.interception.history import Durations
from pie_control.models.served import ServedModels


class OffloadCalls:
    """Moves of pages, and advice about them."""

    def __init__(self, models: ServedModels, durations: Durations) -> None:
        self._models = models
        self._durations = durations

    def kv_costs(self, instance: Instance, model: str) -> str:
        """What moving, recomputing and holding pages costs, as JSON."""
        service = self._models.service(model)
        service.check_trait("offload")
        costs = service.description.kv_costs
        if costs is None:
            raise ApiError(
                "unsupported", f"the worker of model {model!r} has not measured its costs"
            )
        return json.dumps(costs)

    def note_wait(self, instance: Instance, tool: str, nanoseconds: int) -> None:
        """Notes how long a wait for a tool has lasted."""
        if len(tool) > MAX_TOOL:
            raise ApiError(
                "limit-exceeded", f"a tool's name of {len(tool)} characters; {MAX_TOOL} at most"
            )
        self._durations.add(instance.user, tool_kind(tool), nanoseconds / 1e9)


def swap_out(instance: Instance, queue: int, pages: list[int]) -> None:
    """Moves pages to host memory."""
    page_moves.swap_out(queue_of(instance, queue, "offload"), pages)


def swap_in(instance: Instance, queue: int, pages: list[int]) -> Any:
    """Brings pages back; if none are free, the call may wait until others make way."""
    target = queue_of(instance, queue, "offload")
    model = target.model
    count = page_moves.pages_away(target, pages)
    take = partial(page_moves.swap_in, target, pages, partial(model.end_younger, instance))
    return model.take_pages(instance, count, take) if count else None


def discard(instance: Instance, queue: int, pages: list[int]) -> None:
    """Gives up the content of pages."""
    page_moves.discard(queue_of(instance, queue, "offload"), pages)


def advise(instance: Instance, queue: int, pages: list[int], wait: str) -> str:
    """What a policy would do with pages during a wait, as JSON."""
    target = queue_of(instance, queue, "offload")
    space = target.space
    entries = space.pages.find_apart(pages, space.page_pool.size + space.host.pool.size)
    resident = entries[entries >= 0]
    tokens = int(space.page_pool.used[resident].sum())
    adviser = target.model.adviser
    return adviser.advise(
        instance, queue, len(resident), tokens, Wait.parse(wait)
    ).model_dump_json()
