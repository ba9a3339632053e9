"""Interface `store`: what a user's instances keep."""

from __future__ import annotations

from collections.abc import Iterable

from inferlet._bindings import Err
from inferlet._bindings import store as interface
from inferlet.errors import PieError
from inferlet.raw._convert import as_bytes, as_pairs, as_text, as_texts, as_u32


def store_get(key: str) -> int:
    """A future of a key's value, or of the error `not-found`. Consume it with `take_blob`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = interface.store_get(as_text(key))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_set(key: str, value: bytes) -> int:
    """Gives a key a value, new or instead of its old one. Consume the future with `take`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large; of the future:
    quota).
    """
    try:
        answer: int = interface.store_set(as_text(key), as_bytes(value))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_delete(key: str) -> int:
    """Removes a key; one that is not there is no error. Consume the future with `take`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = interface.store_delete(as_text(key))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_list(prefix: str, after: str, limit: int) -> int:
    """A future of the keys that begin with `prefix` and come after `after`, in the order of their
    UTF-8 bytes, at most `limit` (1 to 1000) of them. An empty `after` is before every key. Consume
    it with `take_texts`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded`.
    """
    try:
        answer: int = interface.store_list(as_text(prefix), as_text(after), as_u32(limit))
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_room() -> int:
    """A future that is ready when operations are accepted again. Consume it with `take`.
    Errors: `limit-exceeded`.
    """
    try:
        answer: int = interface.store_room()
    except Err as error:
        raise PieError(error.value) from None
    return answer


def store_commit(
    expected: Iterable[tuple[str, bytes]],
    absent: Iterable[str],
    writes: Iterable[tuple[str, bytes]],
    deletes: Iterable[str],
) -> int:
    """Makes all changes at once, if each of the `expected` keys has just this value and none of the
    `absent` keys exists; otherwise nothing changes and the future's error is `conflict`. At most
    1000 keys in conditions, and as many in changes; none twice. Consume the future with `take`.
    Errors: `invalid-argument`, `would-block`, `limit-exceeded` (value too large, too many keys; of
    the future: quota).
    """
    try:
        answer: int = interface.store_commit(
            as_pairs(expected), as_texts(absent), as_pairs(writes), as_texts(deletes)
        )
    except Err as error:
        raise PieError(error.value) from None
    return answer
