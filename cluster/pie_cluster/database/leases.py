"""Leases of nodes, in the PostgreSQL of the store.

A lease's row ends by the database's clock; deleting it is the take-over: one statement, which the
last renewal decides. With the row goes what is held under it.
"""

from __future__ import annotations

from datetime import datetime

from pie_cluster.database.statements import Statements

LEASE_SECONDS = 15.0  # more than a control loop that has stopped is left alive
MOST_AT_ONCE = 64  # of one look


class Leases(Statements):
    """The table of leases."""

    def hold(self, life: str, seconds: float = LEASE_SECONDS) -> int:
        """A new lease; its number."""
        row = self._one(
            "INSERT INTO leases (life, until)"
            " VALUES (%s, clock_timestamp() + make_interval(secs => %s)) RETURNING number",
            (life, seconds),
        )
        assert row is not None
        return int(row[0])

    def renew(self, lease: int, seconds: float = LEASE_SECONDS) -> bool:
        """Lets a lease go on from now; False if it has been taken over."""
        return self._changes(
            "UPDATE leases SET until = clock_timestamp() + make_interval(secs => %s)"
            " WHERE number = %s",
            (seconds, lease),
        )

    def give_back(self, lease: int) -> None:
        """Ends a lease, of which nothing runs any more; what else it holds is free at once."""
        self._changes("DELETE FROM bus_members WHERE lease = %s", (lease,))
        self._changes("UPDATE leases SET until = clock_timestamp() WHERE number = %s", (lease,))

    def expired(self) -> list[tuple[int, datetime]]:
        """Leases that are over, with their ends."""
        return self._all(
            "SELECT number, until FROM leases WHERE until < clock_timestamp()"
            " ORDER BY until LIMIT %s",
            (MOST_AT_ONCE,),
        )

    def take_over(self, lease: int, until: datetime) -> bool:
        """Takes what runs under a lease from its node, unless that has renewed it meanwhile."""
        return self._changes(
            "DELETE FROM leases WHERE number = %s AND until = %s AND until < clock_timestamp()",
            (lease, until),
        )
