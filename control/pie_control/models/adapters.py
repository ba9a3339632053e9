"""The adapters of one model: their names, their slots at the worker, and who uses them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pie_control.errors import ApiError, exceeded, invalid
from pie_py.config.section import NAME

if TYPE_CHECKING:
    from pie_control.instances.instance import Instance

MAX_ADAPTERS = 256  # of one model
Key = tuple[str, str]  # the user who may use it alone, empty if all may; its name


@dataclass(slots=True, eq=False)
class Adapter:
    """One version of an adapter, which the worker holds."""

    key: Key
    slot: int
    version: str = ""  # SHA-256 of the file that was uploaded
    users: set[Instance] = field(default_factory=set)  # live instances that have run it


class Adapters:
    """The worker's adapters, by name: the newest of each, and former ones in use."""

    def __init__(self, model: str, names: list[str]) -> None:
        """Takes the names that were loaded at start, into the slots 0, 1, ..."""
        self._model = model
        self._loaded = {("", name): Adapter(("", name), slot) for slot, name in enumerate(names)}
        self._former: list[Adapter] = []  # replaced or unloaded, and in use
        self._coming: dict[Key, int] = {}  # slots of those that are being loaded
        self.on_free: Callable[[int], None] = lambda slot: None  # no instance uses a slot

    def names(self, user: str = "") -> list[str]:
        """Names of the adapters that a user may use, sorted; without one, that all may."""
        return sorted({name for owner, name in self._loaded if owner in ("", user)})

    def count_of(self, user: str) -> int:
        """Slots that a user's own adapters take."""
        there = (*(each.key for each in self._all()), *self._coming)
        return sum(owner == user for owner, _ in there)

    @property
    def free(self) -> int:
        """Slots that are free."""
        return MAX_ADAPTERS - len(self._all()) - len(self._coming)

    def find(self, name: str, instance: Instance) -> Adapter:
        """The adapter of a name: the version that the instance has used before, else the newest.

        Raises:
            ApiError: `not-found`.
        """
        own = self._loaded.get((instance.user, name)) or self._loaded.get(("", name))
        if own is None or (self._former and instance not in own.users):
            for each in self._former:
                if instance in each.users and each.key[1] == name:
                    return each
        if own is None:
            there = ", ".join(self.names(instance.user)) or "none"
            raise ApiError(
                "not-found",
                f"model {self._model!r} has no adapter {name!r} loaded; there are: {there}",
            )
        return own

    def version_of(self, user: str, name: str) -> str | None:
        """The newest version of a user's own adapter, None if there is none."""
        found = self._loaded.get((user, name))
        return None if found is None else found.version

    def reserve(self, user: str, name: str) -> int:
        """A slot for an adapter that is about to be loaded; `add` or `give_up` must follow. One of
        a user's own is replaced then.

        Raises:
            ApiError: `invalid-argument`, `already-exists`, `busy`, `limit-exceeded`.
        """
        if not re.fullmatch(NAME, name):
            raise invalid(
                f"adapter {name!r}: a name has letters, digits, `_`, `-`, `.`, 64 at most"
            )
        if (user, name) in self._coming:
            raise ApiError("busy", f"adapter {name!r} is being loaded; wait for that")
        if ("", name) in self._loaded:
            raise ApiError(
                "already-exists", f"model {self._model!r} has an adapter {name!r}; unload it first"
            )
        if not self.free:
            raise exceeded(f"{MAX_ADAPTERS} adapters are loaded; unload some")
        taken = {*(each.slot for each in self._all()), *self._coming.values()}
        slot = next(i for i in range(MAX_ADAPTERS) if i not in taken)
        self._coming[user, name] = slot
        return slot

    def add(self, key: Key, version: str) -> None:
        """The worker has loaded what `reserve` was for."""
        before = self._loaded.get(key)
        self._loaded[key] = Adapter(key, self._coming.pop(key), version)
        if before is not None:
            self._retire(before)

    def give_up(self, key: Key) -> None:
        """It could not."""
        del self._coming[key]

    def remove(self, user: str, name: str) -> None:
        """Takes an adapter out: no other instance can use it from now on, and those that do go on.

        Raises:
            ApiError: `not-found`.
        """
        found = self._loaded.pop((user, name), None)
        if found is None:
            raise ApiError("not-found", f"model {self._model!r} has no adapter {name!r} of yours")
        self._retire(found)

    def drop_instance(self, instance: Instance) -> None:
        """An instance has ended: it uses none any more."""
        for adapter in self._all():
            adapter.users.discard(instance)
        left, self._former = self._former, []
        for each in left:
            self._retire(each)

    def _retire(self, adapter: Adapter) -> None:
        if adapter.users:
            self._former.append(adapter)
        else:
            self.on_free(adapter.slot)

    def _all(self) -> list[Adapter]:
        return [*self._loaded.values(), *self._former]
