"""Arguments as the generated bindings take them.

A value that the bindings can't convert ends the instance, so each is looked at before.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from operator import index
from typing import TypeVar

from inferlet.errors import PieError

Items = TypeVar("Items", "array[int]", bytes)


# Of a list. The engine ends an instance that passes 2 796 202 elements in one call.
MOST_ITEMS = 2_750_000


def as_integer(value: int, lowest: int, end: int) -> int:
    value = index(value)
    if not lowest <= value < end:
        raise ValueError(f"{value} is not within {lowest} to {end - 1}")
    return value


def as_u32(value: int) -> int:
    value = index(value)
    # Most arguments are of this type: they are spared a second call.
    return value if 0 <= value < 2**32 else as_integer(value, 0, 2**32)


def as_u32s(values: Iterable[int]) -> list[int]:
    if isinstance(values, bytes):
        raise TypeError("a list of integers is wanted, not bytes")
    return _bounded(u32_array(values)).tolist()


def u32_array(values: Iterable[int]) -> array[int]:
    if isinstance(values, str) or not hasattr(values, "__iter__"):
        raise TypeError(f"a list of integers is wanted, not {type(values).__name__}")
    try:
        return array("I", iter(values) if isinstance(values, bytes) else values)
    except OverflowError:
        raise OverflowError(f"an integer of a list is not within 0 to {2**32 - 1}") from None


def as_text(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is wanted, not {type(value).__name__}")
    if not value.isascii():
        value.encode()  # raises for a lone surrogate
    return value


def check_several(name: str, values: object) -> None:
    """Raises TypeError: one text stands for a list of them, and would be its letters."""
    if isinstance(values, str | bytes):
        raise TypeError(f"{name}={values!r:.60}: a list of texts is wanted")


def as_texts(values: Iterable[str]) -> list[str]:
    check_several("texts", values)
    return [as_text(value) for value in values]


def as_bytes(value: bytes) -> bytes:
    if isinstance(value, str):
        raise TypeError("bytes are wanted, not str: `text.encode()` makes them")
    return _bounded(bytes(memoryview(value)))


def _bounded(values: Items) -> Items:
    if len(values) > MOST_ITEMS:
        raise PieError(f"limit-exceeded: a list of {len(values)} elements; {MOST_ITEMS} at most")
    return values
