"""Ranks of a worker on a machine where its first rank is not.

The first rank has Ray start an actor on each other machine of the node, and tells it by an
encrypted socket what the ranks are to do. The actor is the first rank's own: Ray ends it with the
worker, however that comes, and the ranks end with the actor.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import psutil
import zmq

from pie_cluster.config import read_member_pair
from pie_cluster.machines.settings import member_keys_file, read_folder
from pie_cluster.wire.sockets import Gate, member_router
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

    def __init__(self, ranks: list[int], meeting: str) -> None:
        """Listens at once; the ranks start when the worker's configuration comes."""
        folder = Path(os.environ["PIE_PY_CLUSTER_FOLDER"])
        token, machine = read_folder(folder)
        use_interface_of(machine.host)
        pair = read_member_pair(member_keys_file(folder, token))
        self._wanted, self._meeting = ranks, meeting
        self._ranks: RankProcesses | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._gate = None if pair is None else Gate(self._context, pair)
        self._router = member_router(self._context, f"tcp://{machine.host}:*", pair)
        self._router.setsockopt(zmq.MAXMSGSIZE, -1)  # plans have any size
        self._router.setsockopt(zmq.RCVHWM, 0)  # and none may be missed
        self._router.bind(f"tcp://{machine.host}:*")
        threading.Thread(target=self._serve, daemon=True).start()

    def endpoint(self) -> str:
        """Where the first rank connects to."""
        bound = self._router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(bound, bytes)
        return bound.rstrip(b"\0").decode()

    def failure(self) -> str:
        """Waits until a rank has failed; returns which one, and how."""
        while self._ranks is None or (failed := self._ranks.failed()) is None:
            time.sleep(LOOK_SECONDS)
        return f"rank {failed.rank} has ended with status {failed.status}; its log tells why"

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        if self._gate is not None:
            poller.register(self._gate.socket, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._gate is not None and self._gate.socket in ready:
                self._gate.answer()
            if self._router in ready:
                self._pass_on(self._router.recv_multipart()[-1])

    def _pass_on(self, frame: bytes) -> None:
        """The first frame is the worker's configuration, each further one is for the ranks."""
        if self._ranks is not None:
            self._ranks.pass_on(frame)
            return
        config = json.dumps(json.loads(frame))
        self._ranks = RankProcesses(self._context, self._wanted, config, self._meeting)
