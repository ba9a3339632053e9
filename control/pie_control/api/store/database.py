"""Keys and values of every user in one SQLite file: the store of one server."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pie_control.api.store.entries import Entries, Operation, Result, Rows, StoreUnusable, writes
from pie_control.data_folder import BUSY_SECONDS
from pie_control.errors import ApiError
from pie_py.config.services import StoreConfig

APPLICATION_ID = 0x7069655F  # "pie_": this file is ours
FORMAT = 1

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
# Changes by durable instances that may be asked for again after a crash.
_DONE = """
CREATE TABLE IF NOT EXISTS done (
    instance TEXT NOT NULL, call INTEGER NOT NULL, PRIMARY KEY (instance, call)
) WITHOUT ROWID
"""


class Database(Entries):
    """The file."""

    def __init__(self, path: Path, config: StoreConfig) -> None:
        """Opens the file, or makes it.

        Raises:
            StoreUnusable: it is damaged, of a newer version, or no store.
        """
        super().__init__(config)
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
        sql.execute(_DONE)
        sql.execute("COMMIT")

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> Rows:
        """Runs one statement."""
        return self._sql.execute(statement, arguments)

    def close(self) -> None:
        """Closes the file."""
        self._sql.close()

    def run(self, operations: Sequence[Operation]) -> list[Result]:
        """As `Entries.run`, in one transaction."""
        try:
            self._sql.execute("BEGIN IMMEDIATE" if writes(operations) else "BEGIN")
            results = self.apply(operations)
            self._sql.execute("COMMIT")
        except (sqlite3.Error, ValueError) as error:  # ValueError: what is no UTF-8 any more
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            if len(operations) > 1:  # nothing of it happened; the others do without the one
                return self.run(operations[: len(operations) // 2])
            # A full disk or a failing one is the operator's to mend.
            return [ApiError("internal", f"the store has failed: {error}")]
        return results


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
