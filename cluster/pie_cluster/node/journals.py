"""Copies of durable instances' journals in the database: a node has them with its lease.

Nothing leaves a node that is not in the copy as well. A node that has lost the lease can write no
more, and another one goes on with the copy, as a server does after a crash. Nodes take what no node
has, as far as they have room.
"""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias, TypeVar

import structlog
import trio

from pie_cluster.database.statements import Connection, DatabaseAway
from pie_cluster.database.tables import Journals, Leases
from pie_cluster.node.lease import NodeLease
from pie_control.errors import ApiError
from pie_control.instances.result_store import StoredResult
from pie_control.journal.file import Journal, JournalLost

log = structlog.get_logger("pie.cluster")

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 0.3  # before what the database has not taken is tried again
AGE_SECONDS = 600.0  # between looks for copies that are old
MOST_AT_ONCE = 64  # instances that are taken at once
# That another node's lease must have been over: the database's clock may have jumped, and then the
# node renews it.
OVER_SECONDS = 2.5

Value = TypeVar("Value")
_Change: TypeAlias = tuple[int | None, Callable[[], Any]]  # under a lease


class JournalCopies:
    """The copies that this node has; see `pie_control.durable.service.Shared`."""

    def __init__(
        self,
        connection: Connection,
        lease: NodeLease,
        life: str,
        room: Callable[[], int],
        keep_seconds: float,
    ) -> None:
        """Takes how many instances this node could take, and how long the copies stay of those that
        have ended. Nothing is asked before it runs.
        """
        self._table, self._leases = Journals(connection), Leases(connection)
        self._in_database = connection.ask
        self._lease, self._life, self._room = lease, life, room
        self._keep_seconds = keep_seconds
        self._held: dict[str, int] = {}  # leases, by instance
        self._places: dict[Journal, tuple[str, int]] = {}  # instances, and bytes of their copies
        self._to_do, self._to_be_done = trio.open_memory_channel[_Change](math.inf)

    async def run(self) -> None:
        """Notes ends, and removes copies, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._drop_old)
            async for lease, statement in self._to_be_done:
                while lease is not None and lease == self._lease.number:
                    try:
                        await self._in_database(statement)
                        break
                    except DatabaseAway as error:
                        log.warning("an end is not noted", reason=str(error))
                        await trio.sleep(AGAIN_SECONDS)

    async def _drop_old(self) -> None:
        while True:
            await trio.sleep(AGE_SECONDS * random.uniform(0.5, 1.0))
            self._change(self._lease.number, self._table.drop_old, self._keep_seconds)

    def _change(self, lease: int | None, change: Callable[..., Any], *arguments: Any) -> None:
        self._to_do.send_nowait((lease, partial(change, *arguments)))

    async def _ask(self, statement: Callable[[], Value]) -> Value:
        try:
            return await self._in_database(statement)
        except DatabaseAway as error:
            raise ApiError("busy", f"the database of the journals is away: {error}") from None

    def _valid_lease(self) -> int:
        lease = self._lease.number
        if lease is None:
            raise ApiError(
                "busy", "this node has no lease in the database, which may be away: try again"
            )
        return lease

    # One

    async def create(self, instance: str, user: str, data: bytes) -> None:
        """See `Shared`."""
        lease = self._valid_lease()
        make = partial(self._table.create, instance, user, lease, self._life, data)
        while lease == self._lease.number:
            try:
                if not await self._in_database(make):
                    raise ApiError("busy", "the lease of this node is over: try again")
                self._held[instance] = lease
                return
            except DatabaseAway as error:
                if not error.may_be_done:
                    raise ApiError("busy", f"the database is away: {error}") from None
            await trio.sleep(AGAIN_SECONDS)
        raise JournalLost(f"{instance} may have been launched; the database is away")

    def hold(self, journal: Journal, instance: str) -> None:
        """See `Shared`."""
        lease = self._held.get(instance)
        if lease is None or lease != self._lease.number:
            raise JournalLost("the node has lost its lease")
        journal.lease = lease
        self._places[journal] = instance, journal.size

    async def write(self, parts: list[tuple[Journal, bytes]]) -> bool:
        """See `Shared`: it waits for a database that is away, until the lease is lost."""
        mine = [(journal, data) for journal, data in parts if journal in self._places]
        lease = mine[0][0].lease if mine else None
        append = [(*self._places[journal], data) for journal, data in mine]
        while append and lease is not None and lease == self._lease.number:
            try:
                if not await self._in_database(partial(self._table.append, lease, append)):
                    return False
                for journal, data in mine:
                    if journal in self._places:
                        instance, place = self._places[journal]
                        self._places[journal] = instance, place + len(data)
                return True
            except DatabaseAway as error:
                log.warning("journals wait for the database", reason=str(error))
                await trio.sleep(AGAIN_SECONDS)
        return not append

    async def read(self, instance: str) -> bytes | None:
        """See `Shared`."""
        return await self._ask(partial(self._table.read, instance))

    async def rewind(self, instance: str, data: bytes) -> None:
        """See `Shared`."""
        lease = self._valid_lease()
        if not await self._ask(partial(self._table.rewind, instance, lease, self._life, data)):
            raise ApiError("busy", f"another node has {instance}: try again later")
        self._held[instance] = lease

    async def result(self, instance: str, user: str | None) -> StoredResult | None:
        """See `Shared`."""
        found = await self._ask(partial(self._table.find, instance))
        if found is None or found.state is None or user not in (None, found.user):
            return None
        return StoredResult(instance, found.user, found.state, found.text, 0)

    def end(self, instance: str, state: str, text: str) -> None:
        """See `Shared`."""
        self._forget(instance)
        lease = self._held.get(instance)
        self._change(lease, self._table.end, instance, lease, state, text)

    def remove(self, instance: str) -> None:
        """See `Shared`."""
        self._forget(instance)
        self._change(self._held.pop(instance, None), self._table.remove, instance)

    def release(self, instance: str) -> None:
        """See `Shared`."""
        lease = self._held.pop(instance, None)
        self._change(lease, self._table.release, instance, lease)

    def _forget(self, instance: str) -> None:
        places = self._places.items()
        self._places = {one: place for one, place in places if place[0] != instance}

    # Those of other nodes

    async def found(self) -> AsyncIterator[tuple[str, bytes]]:
        """See `Shared`."""
        over: dict[tuple[int, datetime], float] = {}  # leases that are over: seen since
        while True:
            await trio.sleep(LOOK_SECONDS * random.uniform(0.5, 1.0))
            lease, room = self._lease.number, min(MOST_AT_ONCE, self._room())
            if lease is None or room <= 0:
                continue
            try:
                now = trio.current_time()
                expired = await self._in_database(self._leases.expired)
                over = {one: over.get(one, now) for one in expired}
                for one, since in over.items():
                    if now - since >= OVER_SECONDS:
                        await self._in_database(partial(self._leases.take_over, *one))
                claim = partial(self._table.claim, lease, self._life, room)
                for instance in await self._in_database(claim):
                    log.info("goes on here", instance=instance)
                    self._held[instance] = lease
                    yield instance, await self._read_claimed(instance)
            except DatabaseAway as error:
                log.warning("lost instances wait for the database", reason=str(error))

    async def _read_claimed(self, instance: str) -> bytes:
        while True:
            try:
                return await self._in_database(partial(self._table.read, instance)) or b""
            except DatabaseAway:
                await trio.sleep(AGAIN_SECONDS)
