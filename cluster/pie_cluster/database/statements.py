"""The connection to the PostgreSQL of the store, for what is no key or value."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from socket import SHUT_RDWR, socket
from typing import Any, TypeVar

import psycopg
import trio

from pie_control.api.store.postgres import OPTIONS, line_of

# A lease must not wait for long behind a statement, or behind one that waits for a lock.
LOCK_MS = 2000
STATEMENT_MS = 5000
ANSWER_SECONDS = 8.0  # then the way to it is cut, or it was stopped

Value = TypeVar("Value")


class DatabaseAway(Exception):
    """The database does not answer, or answers with an error; `may_be_done` tells whether what was
    sent may have happened.
    """

    def __init__(self, problem: str, *, may_be_done: bool) -> None:
        """Takes what the database, or the way to it, says."""
        super().__init__(problem)
        self.may_be_done = may_be_done


class Connection:
    """Is made when it is needed. Those who share it take turns."""

    def __init__(self, address: str) -> None:
        """Connects to nothing yet."""
        self._address = address
        self._sql: psycopg.Connection[tuple[Any, ...]] | None = None
        self._next = trio.Lock()
        self._turns = trio.CapacityLimiter(1)  # which a thread has until it ends, also if abandoned

    async def ask(self, statement: Callable[[], Value]) -> Value:
        """Runs a statement in a thread, which goes on when this is cancelled.
        Raises `DatabaseAway`, also if no answer comes over a connection that seems whole.
        """
        async with self._next:  # so that the time counts from when it is sent
            with trio.move_on_after(ANSWER_SECONDS):
                return await trio.to_thread.run_sync(
                    statement, limiter=self._turns, abandon_on_cancel=True
                )
            if (sql := self._sql) is not None and not sql.closed:
                with suppress(OSError, psycopg.Error), socket(fileno=os.dup(sql.fileno())) as stuck:
                    stuck.shutdown(SHUT_RDWR)
        raise DatabaseAway(f"no answer in {ANSWER_SECONDS:g} s", may_be_done=True)

    def run(self, statement: str, arguments: Sequence[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
        """Runs a statement, with its result in memory. Blocks: to be called by what is asked.
        Raises `DatabaseAway`: see there.
        """
        sent = False
        try:
            if self._sql is None or self._sql.closed:
                sql = psycopg.connect(self._address, autocommit=True, **OPTIONS)
                sql.execute(
                    f"SET lock_timeout = {LOCK_MS}; SET statement_timeout = {STATEMENT_MS}".encode()
                )
                self._sql = sql
            sent = True
            return self._sql.execute(statement.encode(), arguments)
        except psycopg.Error as error:
            ended = (
                self._sql is None or self._sql.closed or (error.sqlstate or "").startswith("57P")
            )
            may_be_done = sent and bool(ended)
            raise DatabaseAway(line_of(error), may_be_done=may_be_done) from None


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
