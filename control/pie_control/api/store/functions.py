"""Trait `store`: the user's persistent keys and values."""

from __future__ import annotations

from functools import partial

from pie_control.api.store.entries import Commit, Get, ListKeys, Operation
from pie_control.api.store.service import StoreService
from pie_control.errors import exceeded, invalid
from pie_control.instances.futures import FutureKind
from pie_control.instances.instance import Instance

MAX_KEY_BYTES = 1024
MAX_COMMIT_KEYS = 1000
MAX_LISTED = 1000

Pairs = list[tuple[str, bytes]]


class StoreCalls:
    """Operations on one store, for all instances."""

    def __init__(self, store: StoreService) -> None:
        self._store = store

    def store_get(self, instance: Instance, key: str) -> int:
        """Opens a future of a key's value."""
        _check_key(key)
        return self._submit(instance, FutureKind.BLOB, Get(instance.user, key))

    def store_set(self, instance: Instance, key: str, value: bytes) -> int:
        """Gives a key a value."""
        return self.store_commit(instance, [], [], [(key, value)], [])

    def store_delete(self, instance: Instance, key: str) -> int:
        """Removes a key, if it is there."""
        return self.store_commit(instance, [], [], [], [key])

    def store_list(self, instance: Instance, prefix: str, after: str, limit: int) -> int:
        """Opens a future of keys in order."""
        for text in (prefix, after):
            if len(text.encode()) > MAX_KEY_BYTES:
                raise invalid(f"no key has more than {MAX_KEY_BYTES} bytes")
        if not 0 < limit <= MAX_LISTED:
            raise invalid(f"{limit} keys asked for; 1 to {MAX_LISTED} are allowed")
        return self._submit(
            instance, FutureKind.TEXTS, ListKeys(instance.user, prefix, after, limit)
        )

    def store_commit(
        self,
        instance: Instance,
        expected: Pairs,
        absent: list[str],
        writes: Pairs,
        deletes: list[str],
    ) -> int:
        """Changes several keys at once, if others are as expected."""
        conditions = [*(key for key, _ in expected), *absent]
        changes = [*(key for key, _ in writes), *deletes]
        for keys in (conditions, changes):
            _check_keys(keys)
        for key, value in writes:
            limit = self._store.config.value_bytes
            if len(value) > limit:
                raise exceeded(
                    f"{key!r} would have {len(value)} bytes; {limit} at most: use several keys"
                )
        return self._submit(
            instance,
            FutureKind.DONE,
            Commit(instance.user, tuple(expected), tuple(absent), tuple(writes), tuple(deletes)),
        )

    def store_room(self, instance: Instance) -> int:
        """Opens a future of room for an operation."""
        return instance.futures.open(FutureKind.DONE, partial(self._store.room, instance))

    def _submit(self, instance: Instance, kind: FutureKind, operation: Operation) -> int:
        return instance.futures.open(kind, partial(self._store.submit, instance, operation))


def _check_keys(keys: list[str]) -> None:
    if len(keys) > MAX_COMMIT_KEYS:
        raise exceeded(f"{len(keys)} keys at once; {MAX_COMMIT_KEYS} at most a commit")
    seen: set[str] = set()
    for key in keys:
        _check_key(key)
        if key in seen:
            raise invalid(f"{key!r} is named twice in one commit")
        seen.add(key)


def _check_key(key: str) -> None:
    size = len(key.encode())
    if not 0 < size <= MAX_KEY_BYTES:
        raise invalid(f"a key of {size} bytes; 1 to {MAX_KEY_BYTES} are allowed")
