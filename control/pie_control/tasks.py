"""Tasks of a service, which run beside its callers and end with it; and counters of what runs."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog
import trio

from pie_control.errors import ApiError

log = structlog.get_logger("pie.control")

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


@contextmanager
def disk_may_refuse(doing: str) -> Iterator[None]:
    """Around what the server does by itself, not for a request: if the disk refuses it, that is
    logged, and no reason to end.
    """
    try:
        yield
    except (OSError, sqlite3.Error, ApiError) as error:
        log.warning("the disk refuses what the server does", doing=doing, reason=str(error))


def take_off(counts: Counter[Key], key: Key, count: int = 1) -> None:
    """Subtracts from a counter, which forgets keys at zero."""
    counts[key] -= count
    if not counts[key]:
        del counts[key]
