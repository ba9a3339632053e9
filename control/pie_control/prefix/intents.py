"""Intents: texts that a lookup has missed, and that its instance is about to compute.

A program whose lookup misses computes the text itself, and inserts it in the same time slice. But
its slice can end in between, and a program that asks then would compute the same once more. So the
text that an interrupted program has asked for counts as on its way: until it offers something,
waits for anything, ends, or has spun for too long.
"""

from __future__ import annotations

from collections.abc import Callable

from pie_control.prefix.tree import Pending

PATIENCE = 8  # slices that others wait for a program that does not come to the point

Key = tuple[tuple[str, int], bytes]  # the user who may find it, adapter; the first tokens


class Intent:
    """One text whose lookup by an instance missed."""

    __slots__ = ("_intents", "_key", "_slices", "pending")

    def __init__(self, intents: Intents, key: Key | None, priority: int, slices: int) -> None:
        """Takes a key if there is something to wait for, and the slices that its instance has
        used.
        """
        self._intents = intents
        self._key = key
        self.pending = Pending(0, priority)
        self._slices = slices

    def interrupt(self) -> None:
        """A slice of its instance has ended."""
        self._slices += 1
        if self._slices > PATIENCE:
            self.drop()
        elif self._key is not None:
            self._intents.held.setdefault(self._key, self)

    def drop(self) -> int:
        """Wakes the waiting lookups; returns how many slices have ended meanwhile."""
        held = self._intents.held
        if self._key is not None and held.get(self._key) is self:
            del held[self._key]
            self._intents.wake(self.pending)
        return self._slices


class Intents:
    """The texts that interrupted instances are about to compute, of one model."""

    def __init__(self, wake: Callable[[Pending], None]) -> None:
        """Takes what wakes the waiting lookups."""
        self.held: dict[Key, Intent] = {}
        self.wake = wake

    def find(self, key: Key, priority: int) -> Pending | None:
        """The pages that a queue of this priority waits for, if an instance is to compute them."""
        intent = self.held.get(key)
        if intent is None or intent.pending.priority < priority:
            return None
        return intent.pending
