"""The tables that nodes share in the store's PostgreSQL: leases, and durable instances' journals.

A journal is written under the lease of one node. A take-over of the lease leaves the journal
without one, so that the former node can write nothing any more, and one other node may claim it.
Numbers of leases only grow: they fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from pie_cluster.database.statements import Statements

LEASE_SECONDS = 15.0  # more than a control loop that has stopped is left alive
READ_SECONDS = 600.0  # that clients look for an instance, which may have ended meanwhile
MOST_AT_ONCE = 64  # of one look


class Found(NamedTuple):
    """Where a durable instance is.

    Attributes:
        life: of the node that has it, or that had it last.
        is_held: whether that holds its lease.
        state: how it has ended, with its text; None until then.
    """

    user: str
    life: str
    is_held: bool
    state: str | None
    text: str


class Journals(Statements):
    """The tables of durable instances and of what their journals have."""

    def create(self, instance: str, user: str, lease: int, life: str, data: bytes) -> bool:
        """Makes a journal that begins so, under a lease; False if that is over."""
        return self._changes(
            "WITH held AS (SELECT 1 FROM leases WHERE number = %s FOR KEY SHARE), made AS ("
            'INSERT INTO journals (instance, "user", lease, life) SELECT %s, %s, %s, %s FROM held'
            " ON CONFLICT DO NOTHING)"
            " INSERT INTO journal_parts SELECT %s, 0, %s FROM held ON CONFLICT DO NOTHING",
            (lease, instance, user, lease, life, instance, data),
        ) or self._changes(  # a try before this one made it
            "SELECT 1 FROM journals WHERE instance = %s AND lease = %s", (instance, lease)
        )

    def append(self, lease: int, parts: Sequence[tuple[str, int, bytes]]) -> bool:
        """Appends to journals: instance, bytes before it, data. To do it again does no harm. False
        if the lease is over: nothing was written.
        """
        instances, places, data = zip(*parts, strict=True)
        row = self._one(
            "WITH held AS (SELECT 1 FROM leases WHERE number = %s FOR KEY SHARE), put AS ("
            "INSERT INTO journal_parts SELECT part.* FROM held, unnest(%s::text[], %s::bigint[],"
            " %s::bytea[]) AS part ON CONFLICT DO NOTHING) SELECT count(*) FROM held",
            (lease, list(instances), list(places), list(data)),
        )
        return row == (1,)

    def read(self, instance: str) -> bytes | None:
        """The bytes of a journal; None if there is none."""
        row = self._one(
            "SELECT string_agg(data, ''::bytea ORDER BY place) FROM journal_parts"
            " WHERE instance = %s",
            (instance,),
        )
        return None if row is None or row[0] is None else bytes(row[0])

    def rewind(self, instance: str, lease: int, life: str, data: bytes) -> bool:
        """Has one that has ended go on under a lease, from this beginning; False if another node
        has it.
        """
        return self._changes(
            "WITH mine AS (UPDATE journals SET lease = %s, life = %s, ended = NULL, state = NULL"
            " WHERE instance = %s AND (lease IS NULL OR lease = %s) RETURNING instance), cut AS ("
            "DELETE FROM journal_parts USING mine WHERE journal_parts.instance = mine.instance"
            " AND place > 0) UPDATE journal_parts SET data = %s FROM mine"
            " WHERE journal_parts.instance = mine.instance AND place = 0",
            (lease, life, instance, lease, data),
        )

    def claim(self, lease: int, life: str, most: int) -> list[str]:
        """Takes some that no node has: those that have not ended, or whose clients may read."""
        rows = self._all(
            "UPDATE journals SET lease = %s, life = %s WHERE instance IN (SELECT instance FROM"
            " journals WHERE lease IS NULL AND (state IS NULL OR ended > clock_timestamp() -"
            " make_interval(secs => %s)) ORDER BY state IS NULL DESC LIMIT %s"
            " FOR UPDATE SKIP LOCKED) RETURNING instance",
            (lease, life, READ_SECONDS, most),
        )
        return [instance for (instance,) in rows]

    def release(self, instance: str, lease: int) -> None:
        """Another node may take it."""
        self._changes(
            "UPDATE journals SET lease = NULL WHERE instance = %s AND lease = %s",
            (instance, lease),
        )

    def end(self, instance: str, lease: int, state: str, text: str) -> None:
        """An instance has ended, unless another node has it."""
        self._changes(
            "UPDATE journals SET state = %s, text = %s, ended = coalesce(ended, clock_timestamp())"
            " WHERE instance = %s AND lease = %s",
            (state, text.encode(), instance, lease),
        )

    def find(self, instance: str) -> Found | None:
        """Where an instance is; None if it has no journal."""
        row = self._one(
            'SELECT "user", life, lease IS NOT NULL, state, text FROM journals WHERE instance = %s',
            (instance,),
        )
        if row is None:
            return None
        user, life, is_held, state, text = row
        return Found(user, life, is_held, state, bytes(text or b"").decode())

    def remove(self, instance: str) -> None:
        """Removes a journal."""
        self._remove_where("instance = %s", instance)

    def drop_old(self, seconds: float) -> None:
        """Removes journals of instances that ended longer ago."""
        self._remove_where("ended < clock_timestamp() - make_interval(secs => %s)", seconds)

    def _remove_where(self, condition: str, argument: str | float) -> None:
        """With what is noted of the instances' calls of the store."""
        self._changes(
            f"WITH gone AS (DELETE FROM journals WHERE {condition} RETURNING instance)"
            " DELETE FROM done USING gone WHERE done.instance = gone.instance",
            (argument,),
        )


class Leases(Statements):
    """The table of leases of nodes.

    A lease's row ends by the database's clock; deleting it is the take-over: one statement, which
    the last renewal decides. With the row goes what is held under it.
    """

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
        """Ends a lease; what it holds is free at once."""
        self._changes("DELETE FROM leases WHERE number = %s", (lease,))

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

    def end(self, life: str) -> None:
        """Takes what a life has that is over."""
        self._changes("DELETE FROM leases WHERE life = %s", (life,))
