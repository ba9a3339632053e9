"""Instances that have ended and still hold what they owned: it is freed by and by."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pie_control.instances.instance import Instance

if TYPE_CHECKING:
    from pie_control.wasm import Guest


class Condemned:
    """Instances from their end until what they owned is free."""

    def __init__(self, free: Callable[[Instance, Guest | None], None]) -> None:
        """Takes what frees all that an instance owned, its guest included."""
        self._free = free
        self._guests: dict[Instance, Guest | None] = {}

    def __contains__(self, instance: Instance) -> bool:
        return instance in self._guests

    def add(self, instance: Instance) -> None:
        """An instance has ended; its guest has no more turn."""
        self._guests[instance], instance.guest = instance.guest, None

    def free(self, instance: Instance) -> None:
        """Frees what an instance owned, unless that has been done."""
        if instance in self._guests:
            self._free(instance, self._guests.pop(instance))

    def free_until(self, enough: Callable[[], bool], user: str | None = None) -> None:
        """Frees what instances owned, of a user or of all, until there is enough."""
        for instance in [] if enough() else list(self._guests):
            if user is None or instance.user == user:
                self.free(instance)
                if enough():
                    return
