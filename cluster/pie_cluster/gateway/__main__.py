"""`python -m pie_cluster.gateway --config JSON`: the address that clients are given, and the
directory of the cluster.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

import trio

from pie_cluster.config import member_of
from pie_cluster.directory.server import DirectoryServer
from pie_cluster.gateway.document import ClusterDocument
from pie_cluster.gateway.methods import GatewayMethods
from pie_cluster.node.links import NodeLinks
from pie_cluster.wire.requests import member_key
from pie_control.confined.pool import ConfinedPool
from pie_control.programs.components import Components
from pie_control.programs.store import PROGRAM_BYTES, Program, ProgramStore
from pie_control.rpc.auth import FolderUsers
from pie_control.rpc.server import RpcServer
from pie_control.shares import Shares
from pie_control.wasm import Engine, EngineConfig
from pie_py.config.child import (
    LEAVE_SECONDS,
    exit_with_parent,
    first_error,
    read_options,
    report_error,
    report_ready,
)
from pie_py.config.keys import KeyStore, KnownUsers
from pie_py.config.server import ServerConfig

if TYPE_CHECKING:
    from pie_cluster.gateway.journals import DurableInstances


class Gateway:
    """The parts of a gateway, and of the directory. Killed and started again, it goes on."""

    def __init__(self, config: ServerConfig) -> None:
        """Nothing listens before `run`. Raises `KeyProblem` if a key cannot be read, and
        `LivesUnusable` of the directory.
        """
        member = member_of(config)
        clock = trio.lowlevel.current_clock().current_time
        self._confined = ConfinedPool(config.confined)
        self._directory = DirectoryServer(member, clock)
        self._links = NodeLinks(partial(member_key, member))
        programs = ProgramStore(config.data_folder / "programs", PROGRAM_BYTES, time.time_ns)
        engine = Engine(
            EngineConfig(
                max_instances=1,  # it compiles, and runs none
                memory_bytes=config.limits.memory,
                cache_folder=config.cache_folder / "compiled",
            )
        )
        components = Components(engine, config.cache_folder, lambda runtime: None, self._confined)

        async def prepare(program: Program) -> None:
            await components.load(program)

        self._durable: DurableInstances | None = None
        if config.store.database:
            from pie_cluster.gateway.journals import DurableInstances  # needs psycopg

            self._durable = DurableInstances(config.store, self._directory)
        pair, keys = member.pair(), KeyStore(config.data_folder)
        users = None if pair is None else KnownUsers(keys)  # None on loopback
        self._document = ClusterDocument(config.data_folder, users, self._directory, self._links)
        shares = Shares.of(config)
        methods = partial(
            GatewayMethods,
            config,
            shares,
            programs,
            self._directory,
            self._links,
            self._confined,
            prepare,
            self._durable,
            self._document,
            clock,
        )
        facts = {"cluster": True}
        let_in = None if pair is None else FolderUsers(keys, pair.public)
        self._rpc = RpcServer(config, shares, methods, clock, facts=facts, users=let_in)

    async def run(self, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serves until cancelled; reports the endpoint once it listens."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._directory.run)
                nursery.start_soon(self._document.run)
                await nursery.start(self._links.run)
                endpoint = await nursery.start(self._rpc.run)
                if self._durable is not None:
                    nursery.start_soon(self._durable.run)
                task_status.started(endpoint)
        finally:
            self._confined.close()


async def _serve(config: ServerConfig, with_parent: bool) -> None:
    async with trio.open_nursery() as nursery:
        endpoint = await nursery.start(Gateway(config).run)
        report_ready(endpoint)
        if with_parent:
            await trio.lowlevel.wait_readable(sys.stdin)
            nursery.cancel_scope.cancel()


def main() -> int:
    """Serves until killed, or (with `--with-parent`) until standard input ends."""
    config, with_parent = read_options("pie_cluster.gateway")
    if with_parent:
        exit_with_parent(LEAVE_SECONDS)
    try:
        trio.run(_serve, config, with_parent)
    except Exception as error:  # noqa: BLE001  every fault ends it, in a line
        report_error(str(first_error(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
