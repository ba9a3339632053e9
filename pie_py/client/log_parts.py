"""An instance's log, which the server tells in parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


async def read_log(ask: Callable[..., Awaitable[dict[str, Any]]], after: int) -> dict[str, Any]:
    """The lines that there are when the first part comes, from a number on.

    Args:
        ask: for a part, with `after`.
        after: number of the first line.
    """
    found = await ask(after=after)
    total, lines = found.pop("total"), found["lines"]
    while found["next"] < total:
        found = await ask(after=found["next"])
        del found["total"]
        lines += found["lines"]
    found["lines"] = lines
    return found
