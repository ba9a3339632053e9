"""Keys and values of this user that survive the instance and the server.

::

    await store.set("greeting", b"hello")
    await store.get("greeting")                      # b"hello", or None
    await store.update("count", lambda old: str(int(old or b"0") + 1).encode())
    keys = [key async for key in store.keys("chat/")]

A key is a text, a value is bytes. What has been awaited is on disk. Operations take effect in the
order of the calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

from inferlet._awaited import store_commit, store_get, store_list
from inferlet._awaited import store_delete as delete
from inferlet._awaited import store_set as set  # noqa: A004 - read as `store.set`
from inferlet.errors import PieError

__all__ = ["commit", "delete", "get", "keys", "set", "update"]

_PAGE = 1000


async def get(key: str) -> bytes | None:
    """A key's value; None if there is no such key.

    Raises:
        PieError: `invalid-argument` (key).
    """
    try:
        return await store_get(key)
    except PieError as error:
        if error.code != "not-found":
            raise
        return None


async def keys(prefix: str = "") -> AsyncIterator[str]:
    """Keys that begin with a prefix, in the order of their UTF-8 bytes.

    They are read as they are wanted: keys that come or go meanwhile may be among them or not.
    """
    page = await store_list(prefix, "", _PAGE)
    while page:
        for key in page:
            yield key
        page = await store_list(prefix, page[-1], _PAGE) if len(page) == _PAGE else []


async def commit(
    changes: Mapping[str, bytes | None], expect: Mapping[str, bytes | None] | None = None
) -> bool:
    """Changes several keys at once, if others have the values they are expected to have.

    Args:
        changes: new values by key; None removes the key.
        expect: values by key that must still be so; None for a key that must not exist.

    Returns:
        Whether it was done. False means that an expectation does not hold; nothing has changed
        then.

    Raises:
        PieError: `invalid-argument` (key), `limit-exceeded` (value too large, too many keys,
            quota).
    """
    conditions = expect or {}
    parts = (
        [(key, value) for key, value in conditions.items() if value is not None],
        [key for key, value in conditions.items() if value is None],
        [(key, value) for key, value in changes.items() if value is not None],
        [key for key, value in changes.items() if value is None],
    )
    try:
        await store_commit(*parts)
    except PieError as error:
        if error.code != "conflict":
            raise
        return False
    return True


async def update(key: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
    """Derives a key's value from its old one, atomically.

    Args:
        key: whose value.
        change: gets the value, None if there is none, and returns the new one, None to remove it.
            It is called again after a concurrent change.

    Returns:
        The new value.
    """
    while True:
        old = await get(key)
        new = change(old)
        if await commit({key: new}, {key: old}):
            return new
