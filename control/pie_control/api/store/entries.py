"""The store's operations, and what they do to two tables, in whichever SQL database these are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from pie_control.errors import ApiError, exceeded
from pie_py.config.services import StoreConfig

ON_DISK = 64  # bytes of the disk that a key takes in addition to its text and value, about
OVERHEAD = 64  # bytes that a key takes in memory in addition to its text
MOST_UNDER_WAY = 1 << 16  # numbers of an instance's calls, of which some may be done again
READ_BYTES = 16 << 20  # results of one `run`; what is beyond comes with the next


class StoreUnusable(Exception):
    """The store's file or database is unusable, and untouched; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Get:
    """The value of a key: bytes, or `not-found`."""

    user: str
    key: str


@dataclass(frozen=True, slots=True)
class ListKeys:
    """Keys that begin with a prefix and come after another key, in order, `limit` at most."""

    user: str
    prefix: str
    after: str
    limit: int


@dataclass(frozen=True, slots=True)
class Commit:
    """An atomic set of changes, if its conditions still hold; else `conflict`."""

    user: str
    expected: tuple[tuple[str, bytes], ...]  # keys that must have these values
    absent: tuple[str, ...]  # keys that must not exist
    writes: tuple[tuple[str, bytes], ...]
    deletes: tuple[str, ...]
    lease: int | None = None  # of its node, which must hold it still; only a database looks at it
    once: tuple[str, int] | None = None  # a durable instance, and the number of its call


@dataclass(frozen=True, slots=True)
class Forget:
    """A durable instance goes on no more: none of its calls is asked for again."""

    instance: str
    user: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of a user's keys and values, and of what the disk needs beside them."""

    user: str


Operation: TypeAlias = Get | ListKeys | Commit | Forget | Usage
Result: TypeAlias = bytes | int | list[str] | ApiError | None


def weight(result: Result) -> int:
    """Bytes that a result takes in memory, about."""
    match result:
        case bytes():
            return len(result)
        case list():
            return sum(map(len, result)) + OVERHEAD * len(result)
    return 0


def writes(operations: Sequence[Operation]) -> bool:
    """True if one of them may change something."""
    return any(isinstance(operation, Commit | Forget) for operation in operations)


class Rows(Protocol):
    """Rows that a statement has found."""

    def fetchone(self) -> Any:
        """The next row, or None."""

    def __iter__(self) -> Iterator[Any]: ...


class Entries(ABC):
    """The tables `entries` and `usage`. Blocks: call it in a thread, one call at a time.

    A commit that has been answered survives the end of the process and of the machine.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._config = config

    @abstractmethod
    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> Rows:
        """Runs one statement, whose arguments stand in it as `?`."""

    @abstractmethod
    def run(self, operations: Sequence[Operation]) -> list[Result]:
        """Runs operations in order; they are on disk when it returns.

        Each takes effect wholly or fails alone, with an `ApiError` as its result. The list is
        shorter than that of the operations if the results grow large, or one has failed: run the
        others again.
        """

    @abstractmethod
    def close(self) -> None:
        """Closes the database."""

    def apply(self, operations: Sequence[Operation]) -> list[Result]:
        """Does the operations of `run`, within a transaction of its own."""
        results: list[Result] = []
        read = 0
        for operation in operations:
            result = self._apply_one(operation)
            results.append(result)
            read += weight(result)
            if read > READ_BYTES:
                break
        return results

    def _apply_one(self, operation: Operation) -> Result:
        match operation:
            case Get(user, key):
                value = self._value(user, key.encode())
                if value is None:
                    return ApiError("not-found", f"the store has no key {key!r}")
                return value
            case ListKeys():
                return self._keys(operation)
            case Usage(user):
                statement = 'SELECT bytes + keys * ? FROM usage WHERE "user" = ?'
                row = self.execute(statement, (ON_DISK, user)).fetchone()
                return 0 if row is None else int(row[0])
            case Forget(instance):
                self.execute("DELETE FROM done WHERE instance = ?", (instance,))
                return None
        self.execute("SAVEPOINT one")
        result = None
        try:
            if operation.once is None or self._is_first(*operation.once):
                self._check(operation)
                self._change(operation)
        except ApiError as error:
            self.execute("ROLLBACK TO one")
            result = error
        self.execute("RELEASE one")
        return result

    def _is_first(self, instance: str, call: int) -> bool:
        """True if a call of a durable instance has not changed anything yet; notes that it has."""
        known = self.execute(
            "SELECT 1 FROM done WHERE instance = ? AND call = ?", (instance, call)
        ).fetchone()
        if known is None:
            self.execute("INSERT INTO done VALUES (?, ?)", (instance, call))
            self.execute(
                "DELETE FROM done WHERE instance = ? AND call < ?",
                (instance, call - MOST_UNDER_WAY),
            )
        return known is None

    def _keys(self, wanted: ListKeys) -> list[str]:
        prefix = wanted.prefix.encode()
        # No byte of UTF-8 is 255, so what begins with a prefix is below the prefix with its last
        # byte raised.
        end = prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"
        rows = self.execute(
            'SELECT key FROM entries WHERE "user" = ? AND key >= ? AND key < ? AND key > ?'
            " ORDER BY key LIMIT ?",
            (wanted.user, prefix, end, wanted.after.encode(), wanted.limit),
        )
        return [key.decode() for (key,) in rows]

    def _check(self, commit: Commit) -> None:
        for key, expected in commit.expected:
            value = self._value(commit.user, key.encode())
            if value is None:
                raise ApiError("conflict", f"{key!r} is no longer there; nothing was changed")
            if value != expected:
                raise ApiError(
                    "conflict",
                    f"{key!r} has another value by now; nothing was changed: read it again",
                )
        for key in commit.absent:
            if self._size(commit.user, key.encode()) is not None:
                raise ApiError("conflict", f"{key!r} exists by now; nothing was changed")

    def _change(self, commit: Commit) -> None:
        keys = size = 0  # more than before
        user = commit.user
        for name, value in commit.writes:
            key = name.encode()
            old = self._size(user, key)
            keys += old is None
            size += len(value) - old if old is not None else len(key) + len(value)
            self.execute(
                'INSERT INTO entries ("user", key, value) VALUES (?, ?, ?)'
                ' ON CONFLICT ("user", key) DO UPDATE SET value = excluded.value',
                (user, key, value),
            )
        for name in commit.deletes:
            key = name.encode()
            old = self._size(user, key)
            if old is not None:
                keys -= 1
                size -= len(key) + old
                self.execute('DELETE FROM entries WHERE "user" = ? AND key = ?', (user, key))
        self._count(user, keys, size)

    def _count(self, user: str, keys: int, size: int) -> None:
        self.execute(
            'INSERT INTO usage ("user", keys, bytes) VALUES (?, ?, ?) ON CONFLICT ("user")'
            " DO UPDATE SET keys = usage.keys + excluded.keys,"
            " bytes = usage.bytes + excluded.bytes",
            (user, keys, size),
        )
        all_keys, all_bytes = self.execute(
            'SELECT keys, bytes FROM usage WHERE "user" = ?', (user,)
        ).fetchone()
        limits = self._config
        # A user above a quota that was lowered may still delete.
        if keys > 0 and all_keys > limits.keys:
            raise _over(user, f"{all_keys} keys", limits.keys, "keys")
        if size > 0 and all_bytes > limits.bytes:
            raise _over(user, f"{all_bytes} bytes", limits.bytes, "bytes")

    def _value(self, user: str, key: bytes) -> bytes | None:
        row = self.execute(
            'SELECT value FROM entries WHERE "user" = ? AND key = ?', (user, key)
        ).fetchone()
        return None if row is None else row[0]

    def _size(self, user: str, key: bytes) -> int | None:
        row = self.execute(
            'SELECT length(value) FROM entries WHERE "user" = ? AND key = ?', (user, key)
        ).fetchone()
        return None if row is None else row[0]


def _over(user: str, amount: str, limit: int, name: str) -> ApiError:
    return exceeded(
        f"the store of {user!r} would have {amount}; {limit} are allowed (store.{name} in the"
        " server's configuration): delete some"
    )
