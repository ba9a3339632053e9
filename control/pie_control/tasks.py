"""Tasks of a service, which run beside its callers and end with it; and counters of what runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

Key = TypeVar("Key")


class Service:
    """A part of the server that starts tasks. `run` must run before the first."""

    _nursery: trio.Nursery | None = None

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Carries the tasks until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    def _start_task(self, work: Callable[..., Awaitable[None]], *args: Any) -> None:
        assert self._nursery is not None, "the service runs"
        self._nursery.start_soon(work, *args)


def take_off(counts: Counter[Key], key: Key, count: int = 1) -> None:
    """Subtracts from a counter, which forgets keys at zero."""
    counts[key] -= count
    if not counts[key]:
        del counts[key]
