"""Threads for work whose length a user chooses, away from the thread that streams to all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
from anyio import to_thread

Value = TypeVar("Value")
THREADS = 3  # of all users; each waits for Python's lock as long as others have it


class Aside:
    """A few threads, of which each user has one at a time: further requests of one wait in line."""

    def __init__(self) -> None:
        """No thread is started yet."""
        self._threads = anyio.CapacityLimiter(THREADS)
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def run(self, user: str, work: Callable[..., Value], *arguments: Any) -> Value:
        """Calls a function in a thread, and returns or raises as it does. It is not given up."""
        turn = self._turns.setdefault(user, anyio.Lock())
        async with turn:
            return await to_thread.run_sync(work, *arguments, limiter=self._threads)
