"""Ways to make something right a little wrong: bytes, and values of JSON or MessagePack."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgpack


def broken(data: bytes, chance: random.Random, most: int | None = None) -> bytes:
    """Bytes of which some are flipped, cut, repeated or more, before `most`."""
    at = chance.randrange(max(1, min(len(data), most or len(data))))
    match chance.randrange(5):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]
        case 2:
            return data[:at] + data[at + chance.randrange(1, 64) :]
        case 3:
            return data + data[at:]
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]


def changed(value: Any, chance: random.Random, odd: Sequence[Any], depth: int = 0) -> Any:
    """The value with something odd, more or less at one place, near its top or anywhere."""
    if not isinstance(value, dict | list) or not value or depth > 20 or chance.random() < 0.08:
        return chance.choice(odd)
    at: Any = chance.choice([*value] if isinstance(value, dict) else range(len(value)))
    inner = changed(value[at], chance, odd, depth + 1)
    kind = chance.randrange(12)
    if isinstance(value, list):
        more = [inner] * (0 if kind == 0 else 1000 if kind == 1 and depth < 2 else 1)
        return [*value[:at], *more, *value[at + 1 :]]
    found = {**value, at: inner}
    if kind < 2:
        del found[at]
    if kind == 1:
        found[str(chance.choice(odd))[:200]] = inner
    return found


def packed(fields: Any) -> bytes:
    """A frame of what MessagePack can carry; of its text, where it cannot."""
    try:
        data: bytes = msgpack.packb(fields)
    except (OverflowError, ValueError, TypeError):
        data = msgpack.packb([str(fields)[:100]])
    return data
