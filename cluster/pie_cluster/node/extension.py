"""The extension that makes a control process a node of a cluster."""

from __future__ import annotations

import hashlib
import os
from functools import partial
from typing import TYPE_CHECKING

import structlog
import trio

from pie_cluster.config import MemberConfig, member_of
from pie_cluster.node.document import NodeDocument
from pie_cluster.node.facts import NodeFacts
from pie_cluster.node.membership import Membership
from pie_cluster.wire.links import GatewayLink
from pie_control.errors import ApiError
from pie_control.extension import Extension, Role
from pie_control.programs.store import ProgramStore, write_whole
from pie_control.wiring import Scope, Wiring
from pie_py.config.child import LEAVE_SECONDS, exit_with_parent, report
from pie_py.config.endpoint import parse_endpoint
from pie_py.config.keys import KeyStore
from pie_py.config.server import ServerConfig
from pie_py.wire.rpc import CHUNK_BYTES

if TYPE_CHECKING:
    from pie_cluster.node.journals import Shared

log = structlog.get_logger("pie.cluster")


def extend(config: ServerConfig) -> Extension:
    """Has a server be a node, which ends with the actor that keeps it. Raises `KeyProblem` if a key
    cannot be read.
    """
    exit_with_parent(LEAVE_SECONDS)
    member = member_of(config)
    scope = Scope(
        id_suffix=f"@{member.life}",
        settings=False,  # the gateway keeps them
        topics=False,
        durable=bool(config.store.database),
        store=member.shares_data,
    )
    return Extension(scope, {"life": member.life}, partial(ClusterNode, config, member))


class ProgramFetcher:
    """Takes programs that this node does not have from the gateway, once, by their hash."""

    def __init__(self, gateway: GatewayLink, programs: ProgramStore) -> None:
        self._gateway = gateway
        self._programs = programs
        self._under_way: dict[str, trio.Lock] = {}

    async def fetch(self, digest: str, user: str) -> None:
        """Has a program here, under the names that the user gave it. Raises `Refusal`: `not-found`
        if the cluster does not have it. Raises `ApiError`: `busy` if the gateway is away;
        `out-of-resources` if the disk is full.
        """
        lock = self._under_way.setdefault(digest, trio.Lock())
        try:
            async with lock:
                if not self._programs.has(digest):
                    await self._take(digest, user)
        finally:
            if not lock.locked():  # who waited has it by now
                self._under_way.pop(digest, None)

    async def _take(self, digest: str, user: str) -> None:
        facts = await self._gateway.ask("program", hash=digest, user=user)
        path = self._programs.temporary_path()
        found = hashlib.sha256()
        try:
            with path.open("wb", buffering=0) as file:
                for offset in range(0, facts["size"], CHUNK_BYTES):
                    part = await self._gateway.ask("program-bytes", hash=digest, offset=offset)
                    found.update(part)
                    write_whole(file, part)
            if found.hexdigest() != digest:
                raise ApiError(
                    "internal", "the gateway has sent another program than was asked for"
                )
            self._programs.adopt(path, digest, facts["name"], facts["kind"], user)
        except OSError as error:
            raise ApiError(
                "out-of-resources", f"the node cannot keep the program: {error.strerror}"
            ) from None
        finally:
            if path.exists():
                os.unlink(path)
        log.info("program fetched", name=facts["name"], hash=digest, bytes=facts["size"])


class ClusterNode(Role):
    """The tasks of a server beside serving because it is a node of a cluster."""

    is_one_of_many = True

    def __init__(
        self, config: ServerConfig, member: MemberConfig, wiring: Wiring, programs: ProgramStore
    ) -> None:
        """Nothing is sent before `run`. Raises `KeyProblem` if a key cannot be read."""
        super().__init__(wiring, programs)
        self._member = member
        self._reason = "it stops"
        encrypted = not parse_endpoint(config.endpoint).resolved().is_loopback
        public = KeyStore(config.data_folder).server_pair().public if encrypted else ""
        self._gateway = GatewayLink(member)
        self._document = NodeDocument(member, self._gateway, public, wiring.clock)
        self.users = self._document
        self._membership = Membership(
            member,
            self._gateway,
            NodeFacts(wiring.models, wiring.registry),
            wiring.registry,
            public,
            wiring.clock,
            self._document,
        )
        self.fetch = ProgramFetcher(self._gateway, programs).fetch
        self.shared: Shared | None = None
        if config.store.database:
            from pie_cluster.node.journals import Shared  # needs psycopg

            self.shared = Shared(config, member, wiring, self.fetch)

    def end_instances(self) -> None:
        """Ends the instances that are left: the node ends."""
        if self.shared is not None:
            self.shared.leave(f"it has ended: {self._reason}")
        self._registry.lose_all(f"node-lost: node {self._member.life} has ended: {self._reason}")

    async def run(self, endpoint: str, stop: trio.Event) -> None:
        """Is a node until cancelled; sets `stop` when the node is to end."""

        def leave(reason: str, drained: bool) -> None:
            self._reason = reason
            report({"left": reason, "drained": drained})
            stop.set()

        async with trio.open_nursery() as nursery:
            await nursery.start(self._gateway.run)
            nursery.start_soon(self._document.run, endpoint)
            if self.shared is not None:
                nursery.start_soon(self.shared.run)
            await self._membership.run(endpoint, leave)
