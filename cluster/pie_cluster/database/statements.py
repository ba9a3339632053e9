"""The connection to the PostgreSQL of the store, for what is no key or value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import psycopg
import trio

from pie_control.store.postgres import OPTIONS, line_of

# A lease must not wait behind a statement that waits for a lock.
LOCK_MS = 2000

Value = TypeVar("Value")


class DatabaseAway(Exception):
    """The database does not answer, or answers with an error. What was sent may have happened."""


class Connection:
    """Is made when it is needed. Those who share it take turns."""

    def __init__(self, address: str) -> None:
        """Connects to nothing yet."""
        self._address = address
        self._sql: psycopg.Connection[tuple[Any, ...]] | None = None
        self._turns = trio.CapacityLimiter(1)

    async def ask(self, statement: Callable[[], Value]) -> Value:
        """What a statement gives, which runs in a thread, and goes on when this is cancelled."""
        return await trio.to_thread.run_sync(statement, limiter=self._turns, abandon_on_cancel=True)

    def run(self, statement: str, arguments: Sequence[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        """Runs a statement, with its result in memory. Blocks: to be called by what is asked.

        Raises:
            DatabaseAway: see there.
        """
        try:
            if self._sql is None or self._sql.closed:
                self._sql = psycopg.connect(self._address, autocommit=True, **OPTIONS)
                self._sql.execute(f"SET lock_timeout = {LOCK_MS}".encode())
            return self._sql.execute(statement.encode(), arguments)
        except psycopg.Error as error:
            raise DatabaseAway(line_of(error)) from None


class Statements:
    """Those of one table. Any of them blocks, and raises `DatabaseAway`."""

    def __init__(self, connection: Connection) -> None:
        """Takes the connection, which other tables may share."""
        self._connection = connection

    def _changes(self, statement: str, arguments: Sequence[Any]) -> bool:
        return self._connection.run(statement, arguments).rowcount > 0

    def _one(self, statement: str, arguments: Sequence[Any]) -> tuple[Any, ...] | None:
        return self._connection.run(statement, arguments).fetchone()

    def _all(self, statement: str, arguments: Sequence[Any]) -> list[Any]:
        return self._connection.run(statement, arguments).fetchall()
