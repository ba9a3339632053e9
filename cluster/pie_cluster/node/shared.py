"""A node's share in the database: its lease, durable instances, topics."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import trio

from pie_cluster.config import MemberConfig
from pie_cluster.database.statements import Connection
from pie_cluster.node.journals import SharedShelf
from pie_cluster.node.lease import NodeLease
from pie_cluster.node.topics import ClusterTopics
from pie_control.wiring import Wiring
from pie_py.config.server import ServerConfig


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
        connection = Connection(config.store.database, channel=member.life)
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
        self.topics = ClusterTopics(connection, self._lease, wiring.answers, config.messaging)
        wiring.registry.on_end.append(self.topics.leave)

    async def run(self) -> None:
        """Holds the lease, and serves, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lease.run)
            nursery.start_soon(self._journals.change)
            await self.topics.run()

    def leave(self, reason: str) -> None:
        """The node is about to end its instances: what it has is free for other nodes."""
        self.topics.lose(reason)
        self._durable.lose(reason)
        self._lease.leave()
