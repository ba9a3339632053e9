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
from pie_cluster.wire.links import NodeLinks
from pie_control.confined.pool import ConfinedPool
from pie_control.programs.components import Components
from pie_control.programs.store import PROGRAM_BYTES, ProgramStore
from pie_control.rpc.auth import FolderUsers
from pie_control.rpc.server import RpcServer
from pie_control.shares import Shares
from pie_control.wasm.engine import Engine, EngineConfig
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


async def serve(config: ServerConfig, with_parent: bool) -> None:
    """Serves until killed, or standard input ends. Killed and started again, it goes on. Raises
    `KeyProblem` if a key cannot be read, `ValueError` of the directory, `ClusterProblem` of what
    was set before, and as `RpcServer.run`.
    """
    member = member_of(config)
    clock = trio.lowlevel.current_clock().current_time
    confined = ConfinedPool(config.confined)
    directory, links = DirectoryServer(member, clock), NodeLinks(member.key)
    keys, pair = KeyStore(config.data_folder), member.pair
    users = None if pair is None else KnownUsers(keys)  # None on loopback
    document = ClusterDocument(config.data_folder, users, directory, links)
    engine = Engine(
        EngineConfig(
            max_instances=1,  # it compiles, and runs none
            memory_bytes=config.limits.memory,
            cache_folder=config.cache_folder / "compiled",
        )
    )
    components = Components(engine, config.cache_folder, lambda runtime: None, confined)

    durable: DurableInstances | None = None
    if config.store.database:
        from pie_cluster.gateway.journals import DurableInstances  # needs psycopg

        durable = DurableInstances(config.store, directory)
    shares = Shares.of(config)
    methods = partial(
        GatewayMethods,
        config,
        shares,
        ProgramStore(config.data_folder / "programs", PROGRAM_BYTES, time.time_ns),
        directory,
        links,
        confined,
        components.load,
        durable,
        document,
        clock,
    )
    let_in = None if pair is None else FolderUsers(keys, pair.public)
    rpc = RpcServer(config, shares, methods, clock, facts={"cluster": True}, users=let_in)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(directory.run)
            nursery.start_soon(document.run)
            await nursery.start(links.run)
            report_ready(await nursery.start(rpc.run))
            if durable is not None:
                nursery.start_soon(durable.run)
            if with_parent:
                await trio.lowlevel.wait_readable(sys.stdin)
                nursery.cancel_scope.cancel()
    finally:
        confined.close()


def main() -> int:
    """Serves until killed, or (with `--with-parent`) until standard input ends."""
    config, with_parent = read_options("pie_cluster.gateway")
    if with_parent:
        exit_with_parent(LEAVE_SECONDS)
    try:
        trio.run(serve, config, with_parent)
    except Exception as error:  # noqa: BLE001  every fault ends it, in a line
        report_error(str(first_error(error)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
