"""An instance's log, which the server tells in parts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pie_py.wire.methods import Logs


async def read_log(
    ask: Callable[[Logs], Awaitable[dict[str, Any]]], instance: str, after: int
) -> dict[str, Any]:
    """The lines that there are when the first part comes, from a number on.

    Args:
        ask: for a part.
        instance: whose they are.
        after: number of the first line.
    """
    found = await ask(Logs(instance, after))
    total, lines = found.pop("total"), found["lines"]
    while found["next"] < total:
        found = await ask(Logs(instance, found["next"]))
        del found["total"]
        lines += found["lines"]
    found["lines"] = lines
    return found
