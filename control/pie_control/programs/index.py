"""The index of uploaded programs: one SQLite file, which several servers may use."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import structlog

from pie_control.data_folder import BUSY_SECONDS

log = structlog.get_logger("pie.programs")

# Hash, name, kind, bytes, user, date in Unix nanoseconds.
Row: TypeAlias = tuple[str, str, str, int, str, int]

_APPLICATION_ID = 0x70696570  # "piep": this file is ours
_FORMAT = 1
_HASH = re.compile(r"[0-9a-f]{64}")
_COLUMNS = "hash, name, kind, size, user, uploaded_ns"

# `number` is the order of the uploads: clocks jump.
_SCHEMA = f"""
CREATE TABLE programs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    hash TEXT NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL,
    user TEXT NOT NULL, uploaded_ns INTEGER NOT NULL,
    UNIQUE (hash, user, name)
);
CREATE INDEX named ON programs (user, name);
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_FORMAT}
"""


class IndexUnusable(Exception):
    """The file can be neither read nor made; the text says why."""


class _Damaged(Exception):
    """The file is no index, or not whole."""


class Index:
    """The programs, oldest upload first: a program may have several users, and several names.

    A change that has returned survives the end of this process at any moment. If the machine ends,
    the last ones may be lost, but nothing is damaged.
    """

    def __init__(self, folder: Path) -> None:
        """Opens the file, or makes it. A damaged one is moved aside.

        Raises:
            IndexUnusable: if the disk refuses it, or a newer pie_py has written it.
        """
        path = folder / "index.sqlite3"
        try:
            try:
                self._sql = _opened(path)
            except _Damaged as error:
                _move_aside(path, str(error))
                self._sql = _opened(path)
        except (OSError, sqlite3.Error) as error:
            raise IndexUnusable(f"the index of programs {path} cannot be used: {error}") from None

    @contextmanager
    def change(self) -> Iterator[None]:
        """A transaction: no other server does anything meanwhile, and all of it happens or nothing.

        Raises:
            OSError: if the disk refuses it.
        """
        try:
            self._sql.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._sql.execute("ROLLBACK")
                raise
            self._sql.execute("COMMIT")
        except sqlite3.Error as error:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise OSError(errno.EIO, f"its index of programs cannot be written ({error})") from None

    def add(self, row: Row) -> None:
        """Adds a program as the newest; one that is there already becomes it. Within a `change`."""
        self._sql.execute(f"REPLACE INTO programs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", row)

    def remove(self, rows: Iterable[Row]) -> None:
        """Removes programs. Within a `change`."""
        self._sql.executemany(
            "DELETE FROM programs WHERE hash = ? AND name = ? AND user = ?",
            [(row[0], row[1], row[4]) for row in rows],
        )

    @property
    def version(self) -> tuple[int, int]:
        """Another one after each change, by whichever server."""
        (others,) = self._sql.execute("PRAGMA data_version").fetchone()
        return others, self._sql.total_changes

    def one_of_hash(self, digest: str) -> Row | None:
        """A program with this content: there may be many."""
        return next(iter(self._rows("hash = ?", digest, most=1)), None)

    def count_and_size(self, user: str) -> tuple[int, int]:
        """A user's programs, and their bytes."""
        count, size = self._sql.execute(
            "SELECT count(*), total(size) FROM programs WHERE user = ?", (user,)
        ).fetchone()
        return count, int(size)

    def of_prefix(self, prefix: str) -> list[Row]:
        """Programs whose hash begins so."""
        return self._rows("hash >= ? AND hash < ?", prefix, prefix + "g")

    def all(self, **values: str) -> list[Row]:
        """The programs with these values of columns, such as `name` and `user`."""
        return self._rows(" AND ".join(["1", *(f"{c} = ?" for c in values)]), *values.values())

    def _rows(self, condition: str, *values: str, most: int = -1) -> list[Row]:
        rows: list[Row] = self._sql.execute(
            f"SELECT {_COLUMNS} FROM programs WHERE {condition} ORDER BY number LIMIT {most}",
            values,
        ).fetchall()
        # A hash is part of a path: a writer of this file must not name other files by it.
        return [row for row in rows if _HASH.fullmatch(row[0])]


def _move_aside(path: Path, problem: str) -> None:
    # Its programs can be uploaded again; a server that does not start is worse.
    aside = path.with_name(path.name + ".damaged")
    os.replace(path, aside)
    for companion in ("-wal", "-shm"):
        path.with_name(path.name + companion).unlink(missing_ok=True)
    log.error("the index of programs is damaged", kept_as=str(aside), problem=problem)


def _opened(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made if it is not there.

    Raises:
        _Damaged: if it is damaged, or no index.
        IndexUnusable: if a newer pie_py has written it.
        sqlite3.OperationalError: if the disk refuses it.
    """
    sql = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        sql.execute("PRAGMA journal_mode = WAL")
        sql.execute("PRAGMA synchronous = NORMAL")  # no wait for the disk on the control thread
        sql.execute("BEGIN IMMEDIATE")  # two servers may start at once
        if not sql.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in _SCHEMA.split(";\n"):
                sql.execute(statement)
        sql.execute("COMMIT")
        ours = sql.execute("PRAGMA application_id").fetchone()[0]
        version = sql.execute("PRAGMA user_version").fetchone()[0]
        if ours == _APPLICATION_ID and version > _FORMAT:
            raise IndexUnusable(
                f"the index of programs {path} has format {version}; this pie_py knows {_FORMAT}:"
                " use a newer one, or another data folder"
            )
        if (ours, version) != (_APPLICATION_ID, _FORMAT):
            raise _Damaged(f"application {ours:x}, format {version}")
        found = sql.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise _Damaged(found)
    except BaseException as error:
        sql.close()
        refused = isinstance(error, sqlite3.OperationalError)  # by the disk, or another server
        if isinstance(error, sqlite3.DatabaseError) and not refused:
            raise _Damaged(str(error)) from None
        raise
    return sql
