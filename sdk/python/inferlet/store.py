"""Keys and values of this user that survive the instance and the server.

::

    await store.set("greeting", "hello")
    await store.get("greeting")                      # b"hello", or None
    await store.get_text("greeting")                 # "hello", or None
    await store.update("count", lambda old: str(int(old or 0) + 1))
    keys = await store.keys("chat/")                 # or: async for key in store.keys("chat/")

A key is a text, a value is bytes; a text is kept as its bytes in UTF-8. What has been awaited is on
disk. Operations take effect in the order of the calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Mapping
from typing import Any

from inferlet._generated.awaited import store_commit, store_get, store_list, store_set
from inferlet._generated.awaited import store_delete as delete
from inferlet.errors import PieError

__all__ = ["commit", "delete", "get", "get_text", "keys", "set", "update"]

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


async def get_text(key: str) -> str | None:
    """As `get`, the value as text. Raises UnicodeDecodeError if it is none in UTF-8."""
    value = await get(key)
    return None if value is None else value.decode()


async def set(key: str, value: bytes | str) -> None:  # noqa: A001 - read as `store.set`
    """Sets a key's value, new or instead of its old one.

    Raises:
        PieError: `invalid-argument` (key), `limit-exceeded` (value too large, quota).
    """
    await store_set(key, _bytes(value))


class keys:  # noqa: N801 - called as a function
    """Keys that begin with a prefix, in the order of their UTF-8 bytes: await a list of them, or
    iterate.

    Iterated over, they are read as they are wanted: keys that come or go meanwhile may be among
    them or not.
    """

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    async def __aiter__(self) -> AsyncIterator[str]:
        """The keys."""
        page = await store_list(self._prefix, "", _PAGE)
        while page:
            for key in page:
                yield key
            page = await store_list(self._prefix, page[-1], _PAGE) if len(page) == _PAGE else []

    def __await__(self) -> Generator[Any, Any, list[str]]:
        """The keys, in a list."""

        async def read() -> list[str]:
            return [key async for key in self]

        return read().__await__()


async def commit(
    changes: Mapping[str, bytes | str | None],
    expect: Mapping[str, bytes | str | None] | None = None,
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
        [(key, _bytes(value)) for key, value in conditions.items() if value is not None],
        [key for key, value in conditions.items() if value is None],
        [(key, _bytes(value)) for key, value in changes.items() if value is not None],
        [key for key, value in changes.items() if value is None],
    )
    try:
        await store_commit(*parts)
    except PieError as error:
        if error.code != "conflict":
            raise
        return False
    return True


async def update(key: str, change: Callable[[bytes | None], bytes | str | None]) -> bytes | None:
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
            return None if new is None else _bytes(new)


def _bytes(value: Any) -> bytes:
    """The bytes that are kept. Raises TypeError if a value is neither bytes nor text."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise TypeError(f"a value is text or bytes, not {type(value).__name__}: json.dumps makes text")
