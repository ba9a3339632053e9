"""Numbers that stand for objects in a guest's hands."""

from __future__ import annotations

from typing import TypeVar

Item = TypeVar("Item")


class Handles(dict[int, Item]):
    """Objects of one instance by handle. Handles count from 1 and are never used twice."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        super().__init__()
        self._last = 0

    def add(self, item: Item) -> int:
        """Gives an object the next handle and returns the handle."""
        self._last += 1
        self[self._last] = item
        return self._last
