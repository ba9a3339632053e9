"""A node's lease in the database: what must not be in two places holds only with it.

The control loop has the lease renewed, so a process that is stopped lets it run out. Statements run
in a thread, and the loop waits for none of them. By this node's clock the lease is over some time
before it is by the database's, so what it held is given up here before another node may have it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import structlog
import trio

from pie_cluster.database.statements import Connection, DatabaseAway
from pie_cluster.database.tables import LEASE_SECONDS, Leases

log = structlog.get_logger("pie.cluster")

# The node gives up what it holds so long before the database gives it away.
MARGIN_SECONDS = 3.0
LOOK_SECONDS = 0.25  # between two looks whether the lease is over

# It goes on while the machine sleeps, as the database's does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class NodeLease:
    """Holds the lease of this node's life, and tells when it is lost."""

    def __init__(self, connection: Connection, life: str) -> None:
        """Takes the way to the database, and the node's life. Nothing is sent before `run`."""
        self.on_lost: list[Callable[[str], None]] = []  # told why; raise nothing
        self._life = life
        self._clock: Callable[[], float] = partial(time.clock_gettime, _CLOCK)
        self._leases, self._ask = Leases(connection), connection.ask
        self._number: int | None = None
        self._former: int | None = None  # lost, with nothing that runs under it any more
        self._until = 0.0  # by `clock`: when this node gives the lease up
        self._leaving = False

    @property
    def number(self) -> int | None:
        """Of the lease; None if there is none now. What it held is given up when this returns."""
        if self._number is not None and self._clock() >= self._until:
            self._lose("the database did not renew it in time")
        return None if self._leaving else self._number

    async def run(self) -> None:
        """Holds the lease until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch)
                while True:
                    began = self._clock()
                    try:
                        await self._renew(began)
                    except DatabaseAway as error:
                        log.warning("the lease is not renewed", reason=str(error))
                    await trio.sleep(max(0.0, began + 1.0 - self._clock()))
        finally:
            if self._number is not None and self._leaving:
                with trio.move_on_after(2.0) as scope:
                    scope.shield = True
                    try:
                        await self._ask(partial(self._leases.give_back, self._number))
                    except DatabaseAway:
                        log.warning("the lease is not given back, and runs out")

    def leave(self) -> None:
        """The node ends: from now on nothing is held, and the lease is given back."""
        self._leaving = True

    async def _renew(self, sent: float) -> None:
        lease = self._number
        if lease is None:
            if self._former is not None:
                await self._ask(partial(self._leases.give_back, self._former))
                self._former = None
            self._number = await self._ask(partial(self._leases.hold, self._life))
            self._until = sent + LEASE_SECONDS - MARGIN_SECONDS
            log.info("lease", number=self._number)
        elif not await self._ask(partial(self._leases.renew, lease)):
            if self._number == lease:
                self._lose("it was taken over")
        elif self._number == lease:
            self._until = sent + LEASE_SECONDS - MARGIN_SECONDS

    async def _watch(self) -> None:
        while True:
            await trio.sleep(LOOK_SECONDS)
            _ = self.number

    def _lose(self, reason: str) -> None:
        self._former, self._number = self._number, None
        log.error("lease lost", reason=reason)
        for told in self.on_lost:
            told(reason)
