"""A node's share in the database: journals of durable instances, which hold with its lease.

A node that has lost the lease can write no more, and none of what it did not write has left it. So
another node goes on by replay, as a server does after a crash. Nodes take what no node has, as far
as they have room.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import structlog
import trio

from pie_cluster.config import MemberConfig
from pie_cluster.database.statements import Connection, DatabaseAway
from pie_cluster.database.tables import Journals, Leases
from pie_cluster.node.lease import NodeLease
from pie_control.durable.shelf import Ended, Shelf
from pie_control.errors import ApiError
from pie_control.instances.launcher import Launcher
from pie_control.instances.registry import Registry
from pie_control.instances.result_store import StoredResult
from pie_control.journal.file import Group, Journal, JournalLost, framed
from pie_control.wiring import Wiring
from pie_py.config.server import ServerConfig

log = structlog.get_logger("pie.cluster")

LOOK_SECONDS = 1.0
AGAIN_SECONDS = 0.3  # before what the database has not taken is tried again
MOST_AT_ONCE = 64  # instances that are taken at once
# That another node's lease must have been over: the database's clock may have jumped, and then the
# node renews it.
OVER_SECONDS = 2.5

Value = TypeVar("Value")
_Change: TypeAlias = tuple[int | None, Callable[[], Any]]  # under a lease


class SharedShelf(Shelf):
    """Journals in the database, of which this node has some."""

    def __init__(
        self,
        connection: Connection,
        lease: NodeLease,
        life: str,
        registry: Registry,
        launcher: Launcher,
        failed: Callable[[Journal], None],
        date_ns: Callable[[], int],
    ) -> None:
        """Nothing is asked before it runs."""
        super().__init__(Path(), failed, date_ns)
        self._table, self._leases = Journals(connection), Leases(connection)
        self._in_database = connection.ask
        self._lease, self._life = lease, life
        self._registry, self._launcher = registry, launcher
        self._claimed: dict[str, int] = {}  # leases, by instance: taken and not opened yet
        self._places: dict[Journal, int] = {}  # bytes that the database has
        self._to_do, self._to_be_done = trio.open_memory_channel[_Change](math.inf)

    async def change(self) -> None:
        """Notes ends, and removes journals, until cancelled."""
        async for lease, statement in self._to_be_done:
            while lease is not None and lease == self._lease.number:
                try:
                    await self._in_database(statement)
                    break
                except DatabaseAway as error:
                    log.warning("an end is not noted", reason=str(error))
                    await trio.sleep(AGAIN_SECONDS)

    async def _ask(self, statement: Callable[[], Value]) -> Value:
        try:
            return await self._in_database(statement)
        except DatabaseAway as error:
            raise ApiError("busy", f"the database of the journals is away: {error}") from None

    def _held(self) -> int:
        lease = self._lease.number
        if lease is None:
            raise ApiError(
                "busy", "this node has no lease in the database, which may be away: try again"
            )
        return lease

    # One journal

    async def create(self, instance: str, user: str, entries: list[Any]) -> int:
        """See `Shelf`. Raises `ApiError`: `busy`; and `JournalLost` if it may be there."""
        data, lease = b"".join(map(framed, entries)), self._held()
        make = partial(self._table.create, instance, user, lease, self._life, data)
        while lease == self._lease.number:
            try:
                if not await self._in_database(make):
                    raise ApiError("busy", "the lease of this node is over: try again")
                self._claimed[instance] = lease
                return len(data)
            except DatabaseAway as error:
                if not error.may_be_done:
                    raise ApiError("busy", f"the database is away: {error}") from None
            await trio.sleep(AGAIN_SECONDS)
        raise JournalLost(f"{instance} may have been launched; the database is away")

    async def rewind(self, instance: str, entries: list[Any]) -> None:
        """See `Shelf`. Raises `ApiError`: `busy`."""
        data, lease = b"".join(map(framed, entries)), self._held()
        if not await self._ask(partial(self._table.rewind, instance, lease, self._life, data)):
            raise ApiError("busy", f"another node has {instance}: try again later")
        self._claimed[instance] = lease

    def _opened(self, instance: str, size: int) -> Journal:
        lease = self._claimed.pop(instance, None)
        if lease is None or lease != self._lease.number:
            raise JournalLost("the node has lost its lease")
        journal = Journal(instance, size, self.writer.changed)
        journal.lease = lease
        self._places[journal] = size
        return journal

    async def _write(self, group: Group) -> list[OSError | JournalLost | None]:
        """Writes until it is done, or the lease is lost."""
        here = [(journal, data) for journal, data, _ in group if journal in self._places]
        lease = next((journal.lease for journal, _, _ in group), None)
        while here and lease is not None and lease == self._lease.number:
            try:
                if await self._in_database(partial(self._put, lease, here)):
                    for journal, data in here:
                        before = 0 if journal.is_replaced else self._places[journal]
                        self._places[journal] = before + len(data)
                    return [None] * len(group)
                break
            except DatabaseAway as error:
                log.warning("journals wait for the database", reason=str(error))
                await trio.sleep(AGAIN_SECONDS)
        return [JournalLost("the node has lost its lease") for _ in group]

    def _put(self, lease: int, group: list[tuple[Journal, bytes]]) -> bool:
        """Writes a group, for a thread; False if the lease is over. To do it again does no harm."""
        for journal, data in group:
            if journal.is_replaced and not self._table.rewind(
                journal.instance, lease, self._life, data
            ):
                return False
        parts = [(j.instance, self._places[j], data) for j, data in group if not j.is_replaced]
        return not parts or self._table.append(lease, parts)

    async def _read(self, instance: str) -> bytes:
        data = await self._ask(partial(self._table.read, instance))
        if data is None:
            raise FileNotFoundError(instance)
        return data

    async def result(self, instance: str, user: str | None) -> StoredResult | None:
        """See `Shelf`."""
        found = await self._ask(partial(self._table.find, instance))
        if found is None or found.state is None or user not in (None, found.user):
            return None
        return StoredResult(instance, found.user, found.state, found.text, 0)

    # Ends

    def end(self, instance: str, state: str, text: str) -> None:
        """See `Shelf`."""
        journal = self._open[instance][1]
        self._places.pop(journal, None)
        if not journal.is_lost:
            self._note_end(instance, journal.lease, state, text)
        super().end(instance, state, text)

    def cannot_go_on(self, instance: str, text: str) -> None:
        """See `Shelf`."""
        self._note_end(instance, self._claimed.pop(instance, None), "failed", text)

    def _note_end(self, instance: str, lease: int | None, state: str, text: str) -> None:
        if lease is not None:
            end = partial(self._table.end, instance, lease, state, text)
            self._to_do.send_nowait((lease, end))

    def remove(self, instance: str) -> None:
        """See `Shelf`."""
        self._claimed.pop(instance, None)
        self._to_do.send_nowait((self._lease.number, partial(self._table.remove, instance)))

    def put_aside(self, instance: str) -> None:
        """See `Shelf`: it stays for its owner to look at."""
        self.cannot_go_on(instance, "internal: its journal is damaged")

    def has_ended(self, ended: Ended) -> None:
        """See `Shelf`."""
        if (lease := self._claimed.pop(ended.id, None)) is not None:  # its node lived no longer
            self._note_end(ended.id, lease, ended.state, ended.text)
        super().has_ended(ended)

    async def release(self, instance: str) -> bool:
        """See `Shelf`."""
        lease = self._claimed.pop(instance, None)
        if lease is not None:
            release = partial(self._table.release, instance, lease)
            self._to_do.send_nowait((lease, release))
        return True

    async def drop_old(self, seconds: float) -> None:
        """See `Shelf`: those of all nodes."""
        await super().drop_old(seconds)
        self._to_do.send_nowait((self._lease.number, partial(self._table.drop_old, seconds)))

    # Those of other nodes

    async def found(self) -> AsyncIterator[str]:
        """Instances that this node has taken because no other one has them."""
        over: dict[tuple[int, datetime], float] = {}  # leases that are over: seen since
        while True:
            await trio.sleep(LOOK_SECONDS * random.uniform(0.5, 1.0))
            lease = self._lease.number
            room = min(MOST_AT_ONCE, self._registry.most - self._registry.live_count)
            ready = self._launcher.models_ready.is_set() and not self._registry.is_closed
            if lease is None or not ready or room <= 0:
                continue
            try:
                now = trio.current_time()
                expired = await self._in_database(self._leases.expired)
                over = {one: over.get(one, now) for one in expired}
                for one, since in over.items():
                    if now - since >= OVER_SECONDS:
                        await self._in_database(partial(self._leases.take_over, *one))
                taken = await self._in_database(partial(self._table.claim, lease, self._life, room))
            except DatabaseAway as error:
                log.warning("lost instances wait for the database", reason=str(error))
                continue
            for instance in taken:
                log.info("goes on here", instance=instance)
                self._claimed[instance] = lease
                yield instance


class Shared:
    """The parts of a node that need a database."""

    def __init__(
        self,
        config: ServerConfig,
        member: MemberConfig,
        wiring: Wiring,
        fetch: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """Nothing is sent before `run`."""
        connection = Connection(config.store.database)
        self._lease = NodeLease(connection, member.life)
        self._journals = SharedShelf(
            connection,
            self._lease,
            member.life,
            wiring.registry,
            wiring.launcher,
            wiring.durable.cannot_write,
            time.time_ns,
        )
        self._durable = wiring.durable
        self._durable.share(self._journals, fetch)
        self._lease.on_lost.append(self._durable.lose)

    async def run(self) -> None:
        """Holds the lease, and serves, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lease.run)
            await self._journals.change()

    def leave(self, reason: str) -> None:
        """The node is about to end its instances: what it has is free for other nodes."""
        self._durable.lose(reason)
        self._lease.leave()
