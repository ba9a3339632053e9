"""Threads for work whose length a user chooses: what parses, sorts and reads files, away from the
thread that streams to all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
from anyio import to_thread

Value = TypeVar("Value")
THREADS = 3  # of all users; each waits for Python's lock as long as others have it


class Aside:
    """A few threads, of which each user has one at a time: many requests of one wait in a line of
    their own.
    """

    def __init__(self) -> None:
        """No thread is started yet."""
        self._threads: anyio.CapacityLimiter | None = None
        self._turns: dict[str, tuple[anyio.Lock, list[None]]] = {}  # and who wants them

    async def run(self, user: str, work: Callable[..., Value], *arguments: Any) -> Value:
        """What a function returns or raises, which is called in a thread. It is not given up."""
        if self._threads is None:  # an event loop has to run
            self._threads = anyio.CapacityLimiter(THREADS)
        async with self._turn(user):
            return await to_thread.run_sync(work, *arguments, limiter=self._threads)

    @asynccontextmanager
    async def _turn(self, user: str) -> AsyncIterator[None]:
        lock, waiting = self._turns.setdefault(user, (anyio.Lock(), []))
        waiting.append(None)
        try:
            async with lock:
                yield
        finally:
            waiting.pop()
            if not waiting:
                del self._turns[user]
