"""Which node has the topics and work queues of a user: this one, or another one that is asked.

A user's first call on any node has that node claim them, in the database and under its lease. They
stay there until nothing is left of the user, or the lease is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import structlog
import trio

from pie_cluster.database.owners import Owner, Owners
from pie_cluster.database.statements import Connection, DatabaseAway
from pie_cluster.node.bus_link import BusLink, lost
from pie_cluster.node.lease import NodeLease
from pie_control.errors import ApiError
from pie_py.config.keys import ClientKey

if TYPE_CHECKING:
    from pie_control.messaging.bus import Bus

log = structlog.get_logger("pie.cluster")

# That a call waits for an owner; a lease that is not renewed is taken over before.
PATIENCE_SECONDS = 25.0
AGAIN_SECONDS = 0.3  # before the database, or an owner that refuses, is asked again


class Here:
    """This node, under one lease."""

    def __init__(self, life: str, lease: int) -> None:
        self.life = life
        self.lease = lease
        self.over: str | None = None  # why the lease is lost

    def lost(self) -> ApiError:
        """What instances are told of what waited here."""
        return lost(self.life, self.over)


TopicOwner: TypeAlias = Here | BusLink


class Ownership:
    """Finds the owner of each user's topics, and is one."""

    def __init__(
        self,
        connection: Connection,
        life: str,
        lease: NodeLease,
        bus: Bus,
        key: Callable[[str], ClientKey | None],
    ) -> None:
        """Owns nothing; nothing is sent before `run`.

        Args:
            connection: to the database.
            life: of this node.
            lease: of this node.
            bus: of the users that this node owns.
            key: for a node of a public key.
        """
        self._table, self._ask = Owners(connection), connection.ask
        self._life = life
        self._lease = lease
        self._bus = bus
        self._key = key
        self._here: Here | None = None  # while this node owns anything under its lease
        self._places: dict[str, TopicOwner] = {}  # by user
        self._claims: dict[str, int] = {}  # the numbers of what is here
        self._links: dict[str, BusLink] = {}  # by life
        self._locks: dict[str, trio.Lock] = {}  # of users that are looked for
        self._me: Callable[[int], Owner] | None = None
        self._nursery: trio.Nursery | None = None
        lease.on_lost.append(self._lose)
        bus.on_empty = self._release_soon

    async def run(self, endpoint: str, public_key: str) -> None:
        """Keeps links to other nodes until cancelled.

        Args:
            endpoint: where other nodes reach this one.
            public_key: of the endpoint; empty on loopback.
        """
        self._me = lambda lease: Owner(lease, self._life, endpoint, public_key)
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    def known(self, user: str) -> TopicOwner | None:
        """Where a user's topics are, as far as is known without asking."""
        place = self._places.get(user)
        if place is None or place.over is not None:
            return None
        if isinstance(place, Here) and self._lease.number != place.lease:
            return None
        return place

    def owns(self, user: str) -> bool:
        """Whether a user's topics are here."""
        return isinstance(self.known(user), Here)

    def leave(self, reason: str) -> None:
        """This node gives up what it owns: it ends."""
        self._lose(reason)

    def forget(self, user: str, place: TopicOwner) -> None:
        """A place does not have a user's topics any more, as it says."""
        if self._places.get(user) is place:
            del self._places[user]

    async def find(self, user: str) -> TopicOwner:
        """Where a user's topics are; here, if they are nowhere.

        Raises:
            ApiError: `busy` if it cannot be told, or the node there does not answer.
        """
        reason = "the node has just started"
        lock = self._locks.setdefault(user, trio.Lock())
        try:
            with trio.move_on_after(PATIENCE_SECONDS):
                async with lock:
                    while True:
                        found = self.known(user) or await self._look(user)
                        if not isinstance(found, str):
                            self._places[user] = found
                            return found
                        reason = found
                        await trio.sleep(AGAIN_SECONDS)
        finally:
            self._unlock(user, lock)
        raise ApiError(
            "busy",
            f"no node has the topics of your instances now: {reason}; try again later",
        )

    def _unlock(self, user: str, lock: trio.Lock) -> None:
        if not lock.locked():
            self._locks.pop(user, None)

    async def _look(self, user: str) -> TopicOwner | str:
        """The owner that the database knows, if it answers; else why not."""
        lease = self._lease.number
        if lease is None or self._me is None or self._nursery is None:
            return "this node has no lease in the database, which may be away"
        told, hear = trio.open_memory_channel[Owner | str](1)
        self._nursery.start_soon(self._claim, user, self._me(lease), told)
        owner = await hear.receive()
        if isinstance(owner, str):
            return owner
        if owner.lease == lease:
            return self._here or "this node's lease was just lost"
        return await self._linked(owner)

    async def _claim(self, user: str, me: Owner, told: trio.MemorySendChannel[Owner | str]) -> None:
        """Goes on when who asks is cancelled: what the database gives to this node is recorded."""
        try:
            owner = await self._ask(partial(self._table.claim, user, me))
        except DatabaseAway as error:
            told.send_nowait(f"the database is away: {error}")
            return
        if owner is None or self._lease.number != me.lease:
            told.send_nowait("this node's lease was just lost")
            return
        is_used = self.owns(user)  # since a claim before this one
        if owner.lease == me.lease:
            self._claims[user] = owner.claim
            if self._here is None:
                self._here = Here(self._life, me.lease)
            self._places[user] = self._here
        told.send_nowait(owner)
        if not is_used and user not in self._locks:  # no call asks any more
            self._release_soon(user)

    async def _linked(self, owner: Owner) -> BusLink | str:
        assert self._nursery is not None, "it runs"
        link = self._links.get(owner.life)
        if link is None or link.over is not None:
            link = self._links[owner.life] = BusLink(owner.life, owner.endpoint)
            self._nursery.start_soon(self._keep, link, self._key(owner.public_key))
        await link.joined.wait()
        return link if link.over is None else f"node {owner.life} has them: {link.over}"

    async def _keep(self, link: BusLink, key: ClientKey | None) -> None:
        await link.run(self._life, key)
        if self._links.get(link.life) is link:
            del self._links[link.life]
        for user in [user for user, place in self._places.items() if place is link]:
            del self._places[user]

    # What is given up

    def _lose(self, reason: str) -> None:
        here, self._here = self._here, None
        if here is None:
            return
        here.over = reason
        for user in [user for user, place in self._places.items() if place is here]:
            del self._places[user]
            self._bus.lose(user, here.lost())
        self._claims.clear()

    def _release_soon(self, user: str) -> None:
        """Nothing is left of a user: another node may own what comes next."""
        place = self._places.get(user)
        if isinstance(place, Here) and self._nursery is not None:
            del self._places[user]
            self._nursery.start_soon(self._release, user, self._claims.pop(user), place.lease)

    async def _release(self, user: str, claim: int, lease: int) -> None:
        release = partial(self._table.release, user, claim)
        while self._lease.number == lease:
            try:
                await self._ask(release)
                return
            except DatabaseAway as error:
                log.warning("topics are not released yet", reason=str(error))
                await trio.sleep(AGAIN_SECONDS)
