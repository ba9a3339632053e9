"""Keys and values of every user in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pie_control.errors import ApiError
from pie_py.config.services import StoreConfig

APPLICATION_ID = 0x7069655F  # "pie_": this file is ours
FORMAT = 1
BUSY_SECONDS = 10.0  # another server on the same folder may write
OVERHEAD = 64  # bytes that a key takes in memory in addition to its text
READ_BYTES = 16 << 20  # results of one `run`; what is beyond comes with the next

_SCHEMA = f"""
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    user TEXT NOT NULL,
    key BLOB NOT NULL,  -- UTF-8: in the order of its bytes
    value BLOB NOT NULL,
    UNIQUE (user, key)
);
CREATE TABLE usage (
    user TEXT PRIMARY KEY,
    keys INTEGER NOT NULL,
    bytes INTEGER NOT NULL  -- of keys and values
) WITHOUT ROWID;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""


class StoreUnusable(Exception):
    """The store's file is unusable; the text says why and what to do. The file stays untouched."""


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


Operation: TypeAlias = Get | ListKeys | Commit
Result: TypeAlias = bytes | list[str] | ApiError | None


def weight(result: Result) -> int:
    """Bytes that a result keeps in memory, about."""
    match result:
        case bytes():
            return len(result)
        case list():
            return sum(map(len, result)) + OVERHEAD * len(result)
    return 0


class Database:
    """The file. Blocks: call it in a thread, one call at a time.

    A commit that has been answered survives the end of the process and of the machine.
    """

    def __init__(self, path: Path, config: StoreConfig) -> None:
        """Opens the file, or makes it.

        Raises:
            StoreUnusable: it is damaged, of a newer version, or no store.
        """
        self._config = config
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Private from the start; SQLite gives its companions the same mode.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            _check_file(path)
            self._sql = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._prepare()
        except (OSError, sqlite3.Error) as error:
            raise StoreUnusable(f"the store {path} cannot be opened: {error}") from None

    def _prepare(self) -> None:
        sql = self._sql
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute("PRAGMA synchronous = FULL")
        sql.execute("BEGIN IMMEDIATE")  # two servers may start at once
        if _is_empty(sql):
            for statement in _SCHEMA.split(";\n"):
                sql.execute(statement)
        sql.execute("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        self._sql.close()

    def run(self, operations: Sequence[Operation]) -> list[Result]:
        """Runs operations in order; they are on disk when it returns.

        Each takes effect wholly or fails alone, with an `ApiError` as its result. The list is
        shorter than that of the operations if the results grow large: run the others again.
        """
        results: list[Result] = []
        read = 0
        writes = any(isinstance(operation, Commit) for operation in operations)
        try:
            self._sql.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            for operation in operations:
                result = self._apply(operation)
                results.append(result)
                read += weight(result)
                if read > READ_BYTES:
                    break
            self._sql.execute("COMMIT")
        except (sqlite3.Error, ValueError) as error:  # ValueError: what is no UTF-8 any more
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            # Nothing of it happened. A full disk or a failing one is the operator's to mend.
            failure = ApiError("internal", f"the store has failed: {error}")
            return [failure] * len(operations)
        return results

    def _apply(self, operation: Operation) -> Result:
        match operation:
            case Get(user, key):
                value = self._value(user, key.encode())
                return _not_found(key) if value is None else value
            case ListKeys():
                return self._keys(operation)
        self._sql.execute("SAVEPOINT one")
        try:
            self._check(operation)
            self._change(operation)
        except ApiError as error:
            self._sql.execute("ROLLBACK TO one")
            return error
        finally:
            if self._sql.in_transaction:
                self._sql.execute("RELEASE one")
        return None

    def _keys(self, wanted: ListKeys) -> list[str]:
        prefix = wanted.prefix.encode()
        # No byte of UTF-8 is 255, so what begins with a prefix is below the prefix with its last
        # byte raised.
        end = prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"
        rows = self._sql.execute(
            "SELECT key FROM entries WHERE user = ? AND key >= ? AND key < ? AND key > ?"
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
            self._sql.execute(
                "INSERT INTO entries (user, key, value) VALUES (?, ?, ?)"
                " ON CONFLICT (user, key) DO UPDATE SET value = excluded.value",
                (user, key, value),
            )
        for name in commit.deletes:
            key = name.encode()
            old = self._size(user, key)
            if old is not None:
                keys -= 1
                size -= len(key) + old
                self._sql.execute("DELETE FROM entries WHERE user = ? AND key = ?", (user, key))
        self._count(user, keys, size)

    def _count(self, user: str, keys: int, size: int) -> None:
        self._sql.execute(
            "INSERT INTO usage (user, keys, bytes) VALUES (?, ?, ?) ON CONFLICT (user) DO UPDATE"
            " SET keys = keys + excluded.keys, bytes = bytes + excluded.bytes",
            (user, keys, size),
        )
        all_keys, all_bytes = self._sql.execute(
            "SELECT keys, bytes FROM usage WHERE user = ?", (user,)
        ).fetchone()
        limits = self._config
        # A user above a quota that was lowered may still delete.
        if keys > 0 and all_keys > limits.keys:
            raise _over(user, f"{all_keys} keys", limits.keys, "keys")
        if size > 0 and all_bytes > limits.bytes:
            raise _over(user, f"{all_bytes} bytes", limits.bytes, "bytes")

    def _value(self, user: str, key: bytes) -> bytes | None:
        row = self._sql.execute(
            "SELECT value FROM entries WHERE user = ? AND key = ?", (user, key)
        ).fetchone()
        return None if row is None else row[0]

    def _size(self, user: str, key: bytes) -> int | None:
        row = self._sql.execute(
            "SELECT length(value) FROM entries WHERE user = ? AND key = ?", (user, key)
        ).fetchone()
        return None if row is None else row[0]


def _not_found(key: str) -> ApiError:
    return ApiError("not-found", f"the store has no key {key!r}")


def _over(user: str, amount: str, limit: int, name: str) -> ApiError:
    return ApiError(
        "limit-exceeded",
        f"the store of {user!r} would have {amount}; {limit} are allowed (store.{name} in the"
        " server's configuration): delete some",
    )


def _check_file(path: Path) -> None:
    """Reads the whole file, and changes nothing in it.

    Raises:
        StoreUnusable: it is damaged, of a newer version, or no store.
    """
    # A connection that may write would move the journal of a killed server into a damaged file.
    sql = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    try:
        if _is_empty(sql):
            return
        if _one(sql, "PRAGMA application_id") != APPLICATION_ID:
            raise StoreUnusable(f"{path} is an SQLite file, but no store of pie_py: move it away")
        version = _one(sql, "PRAGMA user_version")
        if version != FORMAT:
            raise StoreUnusable(
                f"the store {path} has format {version}; this pie_py knows {FORMAT}: use a newer"
                " one"
            )
        found = str(_one(sql, "PRAGMA quick_check(1)"))
        if found != "ok":
            raise StoreUnusable(_damaged(path, found.splitlines()[-1]))
    except sqlite3.DatabaseError as error:
        raise StoreUnusable(_damaged(path, str(error))) from None
    finally:
        sql.close()


def _is_empty(sql: sqlite3.Connection) -> bool:
    return not _one(sql, "PRAGMA application_id") and not _one(
        sql, "SELECT count(*) FROM sqlite_master"
    )


def _one(sql: sqlite3.Connection, statement: str) -> Any:
    return sql.execute(statement).fetchone()[0]


def _damaged(path: Path, problem: str) -> str:
    return (
        f"the store {path} is damaged: {problem}. It is left as it is: recover what is in it with"
        f" `sqlite3 {path.name} .recover`, put a copy back, or move it away to begin with an empty"
        " store"
    )
