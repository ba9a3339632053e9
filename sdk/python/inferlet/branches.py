"""Branches of a program that run at once: all of them, or until the first good one.

A branch is a coroutine, mostly one that generates on a fork. Branches that wait for the model at
the same time run in one batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def gather(*branches: Coroutine[Any, Any, T]) -> list[T]:
    """The results of all branches, in their order; if one fails, the others stop."""
    tasks = [asyncio.ensure_future(branch) for branch in branches]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await _stop(tasks)


async def race(
    *branches: Coroutine[Any, Any, T], good: Callable[[T], bool] = lambda _: True
) -> T | None:
    """The first good result, at which the other branches stop; None if none was good.

    Args:
        branches: what runs at once.
        good: whether a result will do.
    """
    tasks = [asyncio.ensure_future(branch) for branch in branches]
    try:
        for next_done in asyncio.as_completed(tasks):
            result = await next_done
            if good(result):
                return result
    finally:
        await _stop(tasks)
    return None


async def _stop(tasks: list[asyncio.Task[T]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
