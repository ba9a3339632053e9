"""The adapters of one model: their names, their slots at the worker, and their reference counts."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pie_control.errors import ApiError
from pie_py.config.section import NAME

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance

MAX_ADAPTERS = 256  # of one model


@dataclass(slots=True, eq=False)
class Adapter:
    """One adapter that the worker holds."""

    name: str
    slot: int
    users: set[Hashable] = field(default_factory=set)  # live instances that have run it


class Adapters:
    """The adapters that the worker holds, by name."""

    def __init__(self, model: str, names: list[str]) -> None:
        """Takes the names that were loaded at start, into the slots 0, 1, ..."""
        self._model = model
        self._loaded = {name: Adapter(name, slot) for slot, name in enumerate(names)}
        self._coming: dict[str, int] = {}  # slots of those that are being loaded, by name

    @property
    def names(self) -> list[str]:
        """Names of the adapters that may be used, sorted."""
        return sorted(self._loaded)

    def find(self, name: str) -> Adapter:
        """The adapter of a name. Raises ApiError `not-found`."""
        try:
            return self._loaded[name]
        except KeyError:
            there = ", ".join(self.names) or "none"
            raise ApiError(
                "not-found",
                f"model {self._model!r} has no adapter {name!r} loaded; there are: {there}",
            ) from None

    def reserve(self, name: str) -> int:
        """A slot for an adapter that is about to be loaded; `add` or `give_up` must follow.

        Raises:
            ApiError: `invalid-argument`, `already-exists`, `limit-exceeded`.
        """
        if not re.fullmatch(NAME, name):
            raise ApiError(
                "invalid-argument",
                f"adapter {name!r}: a name has letters, digits, `_`, `-`, `.`, 64 at most",
            )
        if name in self._loaded or name in self._coming:
            raise ApiError(
                "already-exists", f"model {self._model!r} has an adapter {name!r}; unload it first"
            )
        taken = {*(a.slot for a in self._loaded.values()), *self._coming.values()}
        if len(taken) >= MAX_ADAPTERS:
            raise ApiError("limit-exceeded", f"{MAX_ADAPTERS} adapters are loaded; unload some")
        slot = next(i for i in range(MAX_ADAPTERS) if i not in taken)
        self._coming[name] = slot
        return slot

    def add(self, name: str) -> None:
        """The worker has loaded what `reserve` was for."""
        self._loaded[name] = Adapter(name, self._coming.pop(name))

    def give_up(self, name: str) -> None:
        """It could not."""
        del self._coming[name]

    def remove(self, name: str) -> Adapter:
        """Takes an adapter out, so that no instance can use it any more.

        Raises:
            ApiError: `not-found`; `busy` if a live instance uses it.
        """
        adapter = self.find(name)
        if adapter.users:
            count = len(adapter.users)
            who = "an instance that is" if count == 1 else f"{count} instances that are"
            raise ApiError(
                "busy",
                f"adapter {name!r} is used by {who} alive; wait for the end, or kill"
                f" {'it' if count == 1 else 'them'}",
            )
        del self._loaded[name]
        return adapter

    def drop_instance(self, instance: Instance) -> None:
        """An instance has ended: it uses none any more."""
        for adapter in self._loaded.values():
            adapter.users.discard(instance)
