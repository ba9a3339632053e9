"""Ranks of a worker on a machine where its first rank is not: an actor of Ray, in the group of the
node's machines. It is the first rank's own: Ray ends it with the worker, however that comes, and
the ranks end with the actor.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psutil
import zmq

from pie_cluster.machines.settings import read_folder
from pie_inference.errors import LoadError
from pie_inference.parallel.processes import RankProcesses

LOOK_SECONDS = 0.1


def use_interface_of(address: str) -> None:
    """Has this process, and those that it starts, reach other ranks by an address of this machine.
    The host's name may lead elsewhere. Raises `LoadError` if the machine has no such address.
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
            return
    raise LoadError(f"ranks on several machines: {address} is no address of this machine")


class RankActor:
    """Keeps the ranks that one worker has on this machine."""

    def __init__(self, ranks: list[int], config: str, meeting: str) -> None:
        """Starts them with the worker's configuration, as JSON."""
        _, machine = read_folder(Path(os.environ["PIE_PY_CLUSTER_FOLDER"]))
        use_interface_of(machine.host)
        self._ranks = RankProcesses(zmq.Context(), ranks, config, meeting)

    def pass_on(self, frame: bytes) -> None:
        """Tells them what the first rank was told."""
        self._ranks.pass_on(frame)

    def failure(self) -> str:
        """Waits until a rank has failed; returns which one, and how."""
        while (failed := self._ranks.failed()) is None:
            time.sleep(LOOK_SECONDS)
        return f"rank {failed.rank} has ended with status {failed.status}; its log tells why"
