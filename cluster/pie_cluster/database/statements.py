"""One connection to the PostgreSQL of the store, for what is no key or value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from pie_control.store.postgres import OPTIONS, line_of


class DatabaseAway(Exception):
    """The database does not answer, or answers with an error. What was sent may have happened."""


class Statements:
    """A connection of its own, which is made when it is needed.

    Blocks: call it in a thread, one call at a time. Any call raises `DatabaseAway`.
    """

    def __init__(self, address: str) -> None:
        """Connects to nothing yet."""
        self._address = address
        self._sql: psycopg.Connection[tuple[Any, ...]] | None = None

    def _changes(self, statement: str, arguments: Sequence[Any]) -> bool:
        return self._run(statement, arguments).rowcount > 0

    def _one(self, statement: str, arguments: Sequence[Any]) -> tuple[Any, ...] | None:
        return self._run(statement, arguments).fetchone()

    def _all(self, statement: str, arguments: Sequence[Any]) -> list[Any]:
        return self._run(statement, arguments).fetchall()

    def _run(self, statement: str, arguments: Sequence[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            if self._sql is None or self._sql.closed:
                self._sql = psycopg.connect(self._address, autocommit=True, **OPTIONS)
            return self._sql.execute(statement.encode(), arguments)
        except psycopg.Error as error:
            raise DatabaseAway(line_of(error)) from None
