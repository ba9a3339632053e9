"""Keys and values of every user in PostgreSQL: the store that all nodes of a cluster share."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pie_control.api.store.entries import (
    Commit,
    Entries,
    Operation,
    Result,
    Rows,
    StoreUnusable,
    writes,
)
from pie_control.errors import ApiError
from pie_py.config.services import StoreConfig

FORMAT = 1
PATIENCE_SECONDS = 10.0  # for a database that is away; then operations fail
# A server that stops within a transaction holds locks of its users for so long at most; one that
# is cut off is noticed as soon.
STUCK_MS = 10_000
_OF_THE_SERVER = {  # its end of a connection that is cut off goes as soon as ours
    "idle_in_transaction_session_timeout": STUCK_MS,
    "tcp_keepalives_idle": 5,
    "tcp_keepalives_interval": 2,
    "tcp_user_timeout": STUCK_MS,
    "client_encoding": "UTF8",
}
OPTIONS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "tcp_user_timeout": STUCK_MS,
    "application_name": "pie_py",
    "options": " ".join(f"-c {name}={value}" for name, value in _OF_THE_SERVER.items()),
}

_SCHEMA = (
    """CREATE TABLE entries (
        "user" TEXT NOT NULL,
        key BYTEA NOT NULL,  -- UTF-8: in the order of its bytes
        value BYTEA NOT NULL,
        PRIMARY KEY ("user", key)
    )""",
    """CREATE TABLE usage (
        "user" TEXT PRIMARY KEY,
        keys BIGINT NOT NULL,
        bytes BIGINT NOT NULL  -- of keys and values
    )""",
    "CREATE TABLE pie_py_store (format INTEGER NOT NULL)",
    f"INSERT INTO pie_py_store VALUES ({FORMAT})",
)
# Of nodes' leases, and of durable instances; they came later, so that a database may lack them.
_SCHEMA_OF_LEASES = (
    """CREATE TABLE leases (
        number BIGSERIAL PRIMARY KEY,
        life TEXT NOT NULL,
        until TIMESTAMPTZ NOT NULL
    )""",
    "CREATE INDEX leases_until ON leases (until)",
)
_SCHEMA_OF_JOURNALS = (
    "DROP TABLE IF EXISTS launches",  # of an earlier pie_py
    """CREATE TABLE journals (
        instance TEXT PRIMARY KEY,
        "user" TEXT NOT NULL,
        lease BIGINT REFERENCES leases ON DELETE SET NULL,  -- of the node that has it
        life TEXT NOT NULL,  -- of that node, or of the last one
        ended TIMESTAMPTZ,
        state TEXT,  -- how it has ended
        text BYTEA
    )""",
    "CREATE INDEX journals_lease ON journals (lease) WHERE lease IS NOT NULL",
    "CREATE INDEX journals_free ON journals (instance) WHERE lease IS NULL AND state IS NULL",
    "CREATE INDEX journals_ended ON journals (ended) WHERE ended IS NOT NULL",
    """CREATE TABLE journal_parts (
        instance TEXT NOT NULL REFERENCES journals ON DELETE CASCADE,
        place BIGINT NOT NULL,  -- bytes of the journal before it
        data BYTEA NOT NULL,
        PRIMARY KEY (instance, place)
    )""",
    """CREATE TABLE done (  -- calls that have changed the store
        instance TEXT NOT NULL,  -- its journal is a server's own, or here
        call BIGINT NOT NULL,
        PRIMARY KEY (instance, call)
    )""",
)


class SharedDatabase(Entries):
    """The tables in a database of their own. A lost connection is made again.

    Commits of one user follow one another, whichever servers they come from: each transaction that
    writes holds a lock of each of its users.
    """

    def __init__(self, config: StoreConfig) -> None:
        """Connects, and makes the tables in an empty database.

        Raises:
            StoreUnusable: it is away, another program's, of a newer version, or its address is
                wrong.
        """
        super().__init__(config)
        try:
            if "password" in conninfo_to_dict(config.database):
                raise StoreUnusable(
                    "store.database: leave the password out, which others could read; libpq takes"
                    " it from the file ~/.pgpass, or from the one that PGPASSFILE names"
                )
            self._sql = self._connected()
            with self._sql.transaction():
                self._prepare()
        except psycopg.Error as error:
            raise StoreUnusable(f"store.database cannot be used: {line_of(error)}") from None

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self._config.database, autocommit=True, **OPTIONS)

    def _prepare(self) -> None:
        self._lock("")  # several servers may start at once
        found = self.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
        tables = {name for (name,) in found}
        if not tables:
            for statement in _SCHEMA:
                self.execute(statement)
        elif "pie_py_store" not in tables:
            raise StoreUnusable(
                f"store.database has tables of another program ({min(tables)}): give an empty one"
            )
        known = self.execute("SELECT format FROM pie_py_store").fetchone()[0]
        if known != FORMAT:
            raise StoreUnusable(
                f"store.database has format {known}; this pie_py knows {FORMAT}: use a newer one"
            )
        for table, schema in (("leases", _SCHEMA_OF_LEASES), ("journals", _SCHEMA_OF_JOURNALS)):
            for statement in schema if table not in tables else ():
                self.execute(statement)

    def close(self) -> None:
        """Closes the connection."""
        self._sql.close()

    def execute(self, statement: str, arguments: Sequence[Any] = ()) -> Rows:
        """Runs one statement, whose arguments stand in it as `?`."""
        return self._sql.execute(statement.replace("?", "%s").encode(), arguments)

    def run(self, operations: Sequence[Operation]) -> list[Result]:
        """Runs operations in order; they are on disk when it returns.

        While the database is away it waits, for a bounded time. What had been sent to be committed
        when the connection ended is not tried again, for it may have happened: its error says so.
        """
        end = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._run(operations)
            except (psycopg.Error, ValueError) as error:  # ValueError: what is no UTF-8 any more
                if not self._sql.closed:
                    with suppress(psycopg.Error):
                        self.execute("ROLLBACK")
                    if len(operations) > 1:  # nothing of it happened; others do without the one
                        return self.run(operations[: len(operations) // 2])
                    return _failed(operations, line_of(error))
                problem = f"its database is away: {line_of(error)}"
            if time.monotonic() > end:
                return _failed(operations, problem)
            time.sleep(0.2)

    def _run(self, operations: Sequence[Operation]) -> list[Result]:
        if self._sql.closed:
            self._sql = self._connected()
        changes = writes(operations)
        self.execute("BEGIN")
        if changes:
            # Always in the same order, or two servers could wait for each other.
            for user in sorted({operation.user for operation in operations}):
                self._lock(user)
        results = self.apply(operations)
        try:
            self.execute("COMMIT")
        except psycopg.Error as error:
            if changes and self._sql.closed:
                problem = "the connection ended while changes were committed, which may have"
                return _failed(
                    operations, f"{problem} happened: read them again ({line_of(error)})"
                )
            raise
        return results

    def _check(self, commit: Commit) -> None:
        if commit.lease is not None:
            # The row is locked, so that a take-over comes after this transaction or before it.
            found = self.execute(
                "SELECT 1 FROM leases WHERE number = ? FOR KEY SHARE", (commit.lease,)
            )
            if found.fetchone() is None:
                raise ApiError(
                    "cancelled", "its node has lost its lease in the database: nothing was changed"
                )
        super()._check(commit)

    def _lock(self, user: str) -> None:
        """Until the transaction's end."""
        digest = blake2b(user.encode(), digest_size=8, person=b"pie store").digest()
        number = int.from_bytes(digest, "little", signed=True)
        self.execute("SELECT pg_advisory_xact_lock(?)", (number,))


def _failed(operations: Sequence[Operation], problem: str) -> list[Result]:
    return [ApiError("internal", f"the store has failed: {problem}")] * len(operations)


def line_of(error: Exception) -> str:
    """The text of an error, in one line."""
    return " ".join(str(error).split()) or type(error).__name__
