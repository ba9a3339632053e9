"""How long calls take: learned from those that were measured, kept for the user in the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable

from asynclm.tools.tool import Tool
from inferlet import store
from inferlet.errors import PieError

MEMORY = 20  # calls that an estimate remembers, about
_PREFIX = "tools/seconds/"


async def learned(tools: Iterable[Tool]) -> list[Tool]:
    """The tools with the times measured before, where there are any."""
    tools = list(tools)
    found = await asyncio.gather(*(_mean(tool.name) for tool in tools))
    return [
        tool if seconds is None else tool.replaced(seconds=seconds)
        for tool, seconds in zip(tools, found, strict=True)
    ]


async def learn(name: str, seconds: Iterable[float]) -> None:
    """Takes measured times of one tool in, also if other instances do so at the same time."""
    measured = list(seconds)
    if not measured:
        return

    def change(old: bytes | None) -> bytes:
        mean, count = _read(old)
        for value in measured:
            count = min(count + 1, MEMORY)
            mean += (value - mean) / count
        return json.dumps({"mean": mean, "count": count}).encode()

    await store.update(_PREFIX + name, change)


async def _mean(name: str) -> float | None:
    try:
        mean, count = _read(await store.get(_PREFIX + name))
    except PieError:  # a name that is no key
        return None
    return mean if count else None


def _read(value: bytes | None) -> tuple[float, int]:
    if value is None:
        return 0.0, 0
    try:
        found = json.loads(value)
        return float(found["mean"]), int(found["count"])
    except (ValueError, KeyError, TypeError):  # another program wrote it: as if there were none
        return 0.0, 0
