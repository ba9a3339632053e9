"""The gateway's part in launches that outlive their node: takes over what no node holds.

It looks at leases that are over and at launches that wait, which the database finds by indexes, not
at nodes. Which node runs a launch next is decided by that node's claim: two gateways, or one that
was started twice, do no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import structlog
import trio

from pie_cluster.database.statements import Connection, DatabaseAway
from pie_cluster.database.tables import Launch, Launches, Leases
from pie_cluster.directory.directory import PlacementRequest
from pie_cluster.directory.server import DirectoryServer
from pie_cluster.node.links import NodeLinks
from pie_cluster.wire.messages import MOST_AVOIDED
from pie_control.api.store.entries import StoreUnusable
from pie_control.api.store.postgres import SharedDatabase
from pie_control.errors import ApiError, Refusal
from pie_py.client.errors import ClientError, RpcError
from pie_py.config.services import StoreConfig

log = structlog.get_logger("pie.cluster")

LOOK_SECONDS = 1.0
AWAY_TRIES = 3  # of a question to a database that is away
WAIT_SECONDS = 30.0  # that who asks for an instance waits for its next run
HOPELESS = ("not-found", "program-rejected")  # of a program: no other node can run it


class Restarts:
    """Takes leases over, and has nodes launch what ran under them."""

    def __init__(
        self,
        store: StoreConfig,
        directory: DirectoryServer,
        links: NodeLinks,
        clock: Callable[[], float],
    ) -> None:
        """Nothing is asked before `run`."""
        connection = Connection(store.database)
        self._table, self._leases = Launches(connection), Leases(connection)
        self._store = store
        self._ask = connection.ask
        self._directory = directory
        self._links = links
        self._clock = clock
        self._refused: dict[str, list[str]] = {}  # by launch: lives that have not taken it
        self._over: dict[tuple[int, datetime], float] = {}  # leases that are over: seen since

    async def run(self) -> None:
        """Looks until cancelled."""
        await self._make_tables()
        while True:
            try:
                await self._look()
            except DatabaseAway as error:
                log.warning("launches of lost nodes wait", reason=str(error))
            await trio.sleep(LOOK_SECONDS)

    async def _make_tables(self) -> None:
        """An empty database gets them before any node is asked for."""
        while True:
            try:
                return await self._ask(lambda: SharedDatabase(self._store).close())
            except StoreUnusable as error:  # it may be away
                log.warning("the database has no tables yet", reason=str(error))
            await trio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        now = self._clock()
        over = await self._ask(self._leases.expired)
        self._over = {lease: self._over.get(lease, now) for lease in over}
        for lease, since in self._over.items():
            # It must have been over for a while: the database's clock may have jumped, and then its
            # node renews it.
            if now - since >= 2.5:
                await self._ask(partial(self._leases.take_over, *lease))
        await self._ask(self._table.give_up)
        waiting = await self._ask(self._table.waiting)
        names = {launch.name for launch in waiting}
        self._refused = {name: by for name, by in self._refused.items() if name in names}
        hopeless: list[tuple[Launch, str]] = []
        async with trio.open_nursery() as nursery:
            for launch in waiting:
                nursery.start_soon(self._launch, launch, hopeless)
        for launch, reason in hopeless:
            await self._ask(partial(self._table.fail, launch.name, launch.run, reason))

    async def _launch(self, launch: Launch, hopeless: list[tuple[Launch, str]]) -> None:
        """Has a node claim the next run. Without success, the next look tries again, unless no node
        can run it.
        """
        refused = self._refused.pop(launch.name, [])[-MOST_AVOIDED + 1 :]
        try:
            # A node may have to load the program.
            with trio.move_on_after(20.0):
                avoid = [launch.life, *refused]
                request = PlacementRequest(launch.user, launch.program, avoid=avoid)
                there = await self._directory.place(request)
                refused.append(str(there.life))
                told = await self._links.ask(
                    there.endpoint,
                    there.public_key,
                    "launch-again",
                    launch=launch.name,
                    run=launch.run,
                )
                log.info("launched again", instance=told["instance"], run=launch.run + 1)
                return
            self._refused[launch.name] = refused
        except (Refusal, ApiError, ClientError) as error:
            log.warning("not launched again yet", launch=launch.name, reason=str(error))
            if isinstance(error, ClientError):  # of the node; else all may be asked again
                self._refused[launch.name] = refused
            if isinstance(error, RpcError) and error.code in HOPELESS:
                hopeless.append((launch, str(error)))

    async def where(self, instance: str, scope: str | None, lost: Refusal) -> dict[str, Any]:
        """Where an instance of a node that is lost goes on, or how it has ended; the user `scope`
        asks, None may see all. Raises `lost` if its launch is not recorded, and `ApiError`: `busy`
        if it waits for too long, or the database is away.
        """
        name, _, life = instance.partition("@")
        tries = 0
        with trio.move_on_after(WAIT_SECONDS):
            while True:
                try:
                    launch = await self._ask(partial(self._table.find, name))
                except DatabaseAway:  # or back, and the connection to it is an old one
                    tries += 1
                    if tries < AWAY_TRIES:
                        await trio.sleep(LOOK_SECONDS / 2)
                        continue
                    raise ApiError(
                        "busy",
                        f"{lost.message}; whether it is launched again cannot be told while the"
                        " database is away: ask again later",
                    ) from None
                if launch is None or scope not in (None, launch.user):
                    raise lost
                if launch.state is not None:
                    return {"instance": instance, "state": launch.state, "text": launch.text}
                if launch.lease is not None and launch.life != life:
                    present = f"{name}@{launch.life}"
                    try:
                        there = await self._directory.where(present)
                        return {**there.described(), "instance": present}
                    except Refusal:  # lost as well
                        life = launch.life
                await trio.sleep(LOOK_SECONDS / 2)
        raise ApiError("busy", f"{name} waits to be launched again; ask again later")
