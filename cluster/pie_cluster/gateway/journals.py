"""The gateway's part in durable instances: where those are whose node is lost."""

from __future__ import annotations

from functools import partial

import structlog
import trio

from pie_cluster.database.statements import Connection, DatabaseAway
from pie_cluster.database.tables import Journals, Leases
from pie_cluster.directory.directory import Location, PlacementRequest
from pie_cluster.directory.server import DirectoryServer
from pie_control.api.store.entries import StoreUnusable
from pie_control.api.store.postgres import SharedDatabase
from pie_control.errors import ApiError, Refusal
from pie_py.config.services import StoreConfig

log = structlog.get_logger("pie.cluster")

LOOK_SECONDS = 0.25
AGAIN_SECONDS = 1.0  # before a database that is away is asked again
AWAY_TRIES = 3
WAIT_SECONDS = 30.0  # that who asks for an instance waits for a node that takes it


class DurableInstances:
    """Finds them by their journals, and frees those of lives that are over."""

    def __init__(self, store: StoreConfig, directory: DirectoryServer) -> None:
        """Nothing is asked before `run`."""
        connection = Connection(store.database)
        self._table, self._leases = Journals(connection), Leases(connection)
        self._store, self._ask = store, connection.ask
        self._directory = directory
        over, self._over = trio.open_memory_channel[str](64)

        def note(life: str) -> None:
            try:
                over.send_nowait(life)
            except trio.WouldBlock:
                log.info("a lease runs out by itself", life=life)

        directory.on_over = note

    async def run(self) -> None:
        """Makes an empty database's tables, before any node is asked for; then has other nodes go
        on at once with what a life had that is over, until cancelled.
        """
        while True:
            try:
                await self._ask(lambda: SharedDatabase(self._store).close())
                break
            except (StoreUnusable, DatabaseAway) as error:
                log.warning("the database has no tables yet", reason=str(error))
            await trio.sleep(AGAIN_SECONDS)
        async for life in self._over:
            try:
                await self._ask(partial(self._leases.end, life))
            except DatabaseAway as error:  # then it runs out by itself
                log.warning("a lease is not ended", life=life, reason=str(error))

    async def where(self, instance: str, scope: str | None, lost: Refusal) -> Location:
        """The node that an instance goes on at, or one that may tell how it has ended; the user
        `scope` asks, None may see all. Raises `lost` if it has no journal, and `ApiError`: `busy`
        if no node takes it for long, or the database is away.
        """
        tries = iter(range(AWAY_TRIES))
        with trio.move_on_after(WAIT_SECONDS):
            while True:
                try:
                    found = await self._ask(partial(self._table.find, instance))
                except DatabaseAway:  # or back, and the connection to it is an old one
                    if next(tries, None) is None:
                        told = "whether it goes on elsewhere cannot be told without the database"
                        raise ApiError("busy", f"{lost.message}; {told}: ask again") from None
                    await trio.sleep(LOOK_SECONDS)
                    continue
                if found is None or scope not in (None, found.user):
                    raise lost
                if found.is_held:
                    try:
                        return await self._directory.where(found.life)
                    except Refusal as refusal:
                        if refusal.code != "node-lost":
                            raise
                elif found.state is not None:
                    return await self._directory.place(PlacementRequest(found.user, ""))
                await trio.sleep(LOOK_SECONDS)
        raise ApiError("busy", f"{instance} waits for a node that takes it; ask again later")
