"""A control process as a node of a cluster: its membership, and programs that it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from pie_control.cluster.directory_link import DirectoryLink
from pie_control.cluster.facts import NodeFacts
from pie_control.cluster.fetching import ProgramFetcher
from pie_control.cluster.membership import Membership
from pie_control.cluster.parent import tell_parent
from pie_control.cluster.users import ClusterUsers
from pie_control.programs.store import ProgramStore
from pie_control.wiring import Wiring
from pie_py.config.cluster import MemberConfig
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import KeyStore
from pie_py.config.server import ServerConfig

if TYPE_CHECKING:
    from pie_control.cluster.recorded import RecordedLaunches


class ClusterNode:
    """What a server does beside serving because it is a node of a cluster."""

    def __init__(
        self, config: ServerConfig, member: MemberConfig, wiring: Wiring, programs: ProgramStore
    ) -> None:
        """Nothing is sent before `run`.

        Raises:
            KeyProblem: if a key cannot be read.
        """
        self._member = member
        self._reason = "it stops"
        encrypted = not parse_endpoint(config.endpoint).is_loopback
        public = KeyStore(config.data_folder).server_pair().public if encrypted else ""
        self._directory = DirectoryLink(member)
        self.users = ClusterUsers(member, self._directory, wiring.clock)
        facts = NodeFacts(wiring.models, wiring.registry)
        self._membership = Membership(
            member, facts, wiring.registry, public, wiring.clock, self.users.renewed
        )
        self._registry = wiring.registry
        self.fetch = ProgramFetcher(member, programs).fetch
        self.recorded: RecordedLaunches | None = None
        if config.store.database:
            from pie_control.cluster.recorded import RecordedLaunches  # needs psycopg

            self.recorded = RecordedLaunches(
                config.store.database,
                member.life,
                wiring.registry,
                wiring.launcher,
                programs,
                self.fetch,
                wiring.clock,
            )

    def end_instances(self) -> None:
        """Ends the instances that are left: the node ends."""
        if self.recorded is not None:
            self.recorded.leave()
        self._registry.lose_all(f"node-lost: node {self._member.life} has ended: {self._reason}")

    async def run(self, endpoint: str, stop: trio.Event) -> None:
        """Is a node until cancelled; sets `stop` when the node is to end."""

        def leave(reason: str, drained: bool) -> None:
            self._reason = reason
            tell_parent({"left": reason, "drained": drained})
            stop.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._directory.run)
            if self.recorded is not None:
                nursery.start_soon(self.recorded.run)
            await self._membership.run(endpoint, leave)
