"""What nodes share in the PostgreSQL of the store: leases, launches that outlive them, topics.

A launch is run under the lease of one node. A take-over of the lease leaves the launch without one,
so that the former run can change nothing any more, and one other node may claim the next run.
Numbers of runs only grow: they fence.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pie_cluster.database.statements import Statements
from pie_control.errors import ApiError
from pie_control.instances.instance import Fence

LEASE_SECONDS = 15.0  # more than a control loop that has stopped is left alive
MOST_KEPT = 1000  # results of one user; the oldest go
MOST_AT_ONCE = 64  # of one look

_COLUMNS = 'name, "user", program, args, runs, run, lease, life, keep, state, text'


class Launch(NamedTuple):
    """A launch that is recorded.

    Attributes:
        name: of its instances' ids, before the `@`.
        runs: that it may have in all.
        run: how many have begun.
        lease: under which it runs; None: it waits, or has ended.
        life: of the last run's node.
        state: how it has ended, with its text; None until then.
    """

    name: str
    user: str
    program: str
    args: list[str]
    runs: int
    run: int
    lease: int | None
    life: str
    keep: bool
    state: str | None = None
    text: str = ""


class Launches(Statements):
    """The table of launches."""

    def record(self, launch: Launch) -> bool:
        """Keeps a launch, whose first run is to begin; False if its name is used already."""
        return self._changes(
            'INSERT INTO launches (name, "user", program, args, runs, run, lease, life, keep)'
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
            (*launch[:3], json.dumps(launch.args), *launch[4:9]),
        )

    def claim(self, name: str, run: int, lease: int, life: str) -> bool:
        """The run after `run` is to begin, under a lease and in a life of its node; False if
        another node was first.
        """
        return self._changes(
            "UPDATE launches SET run = run + 1, lease = %s, life = %s WHERE name = %s"
            " AND run = %s AND run < runs AND lease IS NULL AND state IS NULL",
            (lease, life, name, run),
        )

    def undo(self, fence: Fence) -> None:
        """A run that was recorded has not begun: the next one takes its place, if there was one
        before it.
        """
        where = (fence.launch, fence.run, fence.lease)
        held = " WHERE name = %s AND run = %s AND lease = %s"
        if fence.run == 1:
            self._changes("DELETE FROM launches" + held, where)
        else:
            self._changes("UPDATE launches SET run = run - 1, lease = NULL" + held, where)

    def finish(self, fence: Fence, state: str, text: str) -> bool:
        """A run has ended, and no other one comes; False if it is not the present one any more.

        May be called again when it is not known whether it has happened.
        """
        where = (fence.launch, fence.run, fence.lease)
        if self._changes(
            "WITH gone AS (DELETE FROM launches WHERE name = %s AND run = %s AND lease = %s"
            " AND NOT keep RETURNING 1), kept AS (UPDATE launches SET state = %s, text = %s,"
            " ended = clock_timestamp(), lease = NULL WHERE name = %s AND run = %s AND lease = %s"
            " AND keep RETURNING 1) SELECT 1 FROM gone UNION ALL SELECT 1 FROM kept",
            (*where, state, text.encode(), *where),
        ):
            self._prune(fence.launch)
            return True
        now = self.find(fence.launch)
        return now is None or (now.run, now.state, now.text) == (fence.run, state, text)

    def give_up(self) -> None:
        """Ends launches that have lost their last run."""
        lost = " WHERE lease IS NULL AND state IS NULL AND run >= runs"
        self._changes("DELETE FROM launches" + lost + " AND NOT keep", ())
        self._changes(
            "UPDATE launches SET state = 'failed', ended = clock_timestamp(), text = convert_to("
            "'node-lost: node ' || life || ' has ended; that was run ' || run || ' of ' || runs,"
            " 'UTF8')" + lost,
            (),
        )

    def fail(self, name: str, run: int, text: str) -> None:
        """Ends a launch that waits and cannot run any more."""
        self._changes(
            "UPDATE launches SET state = 'failed', ended = clock_timestamp(), text = %s"
            " WHERE name = %s AND run = %s AND lease IS NULL AND state IS NULL",
            (text.encode(), name, run),
        )

    def waiting(self) -> list[Launch]:
        """Launches that wait for their next run, some of them if there are many."""
        rows = self._all(
            f"SELECT {_COLUMNS} FROM launches WHERE lease IS NULL AND state IS NULL AND run < runs"
            " ORDER BY random() LIMIT %s",
            (MOST_AT_ONCE,),
        )
        return [_launch(row) for row in rows]

    def find(self, name: str) -> Launch | None:
        """The launch of a name, if it has not ended or its result is kept."""
        row = self._one(f"SELECT {_COLUMNS} FROM launches WHERE name = %s", (name,))
        return None if row is None else _launch(row)

    def _prune(self, name: str) -> None:
        self._changes(
            "DELETE FROM launches WHERE name IN (SELECT name FROM launches WHERE state IS NOT NULL"
            ' AND "user" = (SELECT "user" FROM launches WHERE name = %s)'
            " ORDER BY ended DESC OFFSET %s)",
            (name, MOST_KEPT),
        )


def _launch(row: Sequence[Any]) -> Launch:
    text = b"" if row[10] is None else bytes(row[10])
    name, user, program, args, runs, run, lease, life, keep, state, _ = row
    arguments: list[str] = json.loads(args)
    return Launch(
        name, user, program, arguments, runs, run, lease, life, keep, state, text.decode()
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


class Topics(Statements):
    """Topics and work queues, by the functions of the store's `topics.sql`."""

    def call(self, name: str, *arguments: Any) -> Any:
        """What a function gives. Raises `ApiError`: the instance is refused."""
        marks = ", ".join(["%s"] * len(arguments))
        row = self._one(f"SELECT * FROM bus_{name}({marks})", arguments)
        assert row is not None
        if len(row) == 1:
            return row[0]
        code, told, value = row
        if code is not None:
            raise ApiError(code, told)
        return value

    def waits(self, lease: int) -> dict[tuple[str, int], bool]:
        """Open futures of a node, by instance and handle: whether a message was given to each."""
        rows = self._all(
            "SELECT instance, future, ready FROM bus_waits JOIN bus_members USING (instance)"
            " WHERE lease = %s",
            (lease,),
        )
        return {(instance, future): ready for instance, future, ready in rows}
