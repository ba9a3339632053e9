"""Keeps values in the store, or tells what is kept."""

import asyncio
import json

from inferlet import store

AT_ONCE = 200  # values


async def main(args: list[str]) -> str:
    """`keep KEY VALUE`, or `list PREFIX`, whose result is JSON."""
    if args[0] == "keep":
        await store.set(args[1], args[2].encode())
        return "kept"
    keys = [key async for key in store.keys(args[1])]
    found: dict[str, str] = {}
    for first in range(0, len(keys), AT_ONCE):
        part = keys[first : first + AT_ONCE]
        values = await asyncio.gather(*map(store.get, part))
        found |= {key: (value or b"").decode() for key, value in zip(part, values, strict=True)}
    return json.dumps(found)
