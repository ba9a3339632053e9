"""`python -m pie_cluster.ranks.worker`: a worker whose ranks are on several machines."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
import zmq
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pie_cluster.config import FurtherRanks, read_member_pair
from pie_cluster.machines.actors import bundle, connect, machines_of
from pie_cluster.machines.settings import member_keys_file, read_folder
from pie_cluster.ranks.actor import RankActor, use_interface_of
from pie_cluster.wire.sockets import member_dealer
from pie_inference.__main__ import main
from pie_inference.errors import LoadError
from pie_inference.parallel.processes import RankProcesses
from pie_inference.parallel.ranks import Meeting
from pie_inference.parallel.team import Team
from pie_inference.serving.worker import WorkerConfig, run
from pie_py.config.keys import KeyPair

START_SECONDS = 30.0  # for an actor to begin, where one of another worker may have to end
SILENT_MS = 2500  # without a word from another machine, after which it is lost
LINGER_MS = 1000  # for the last message


class RemoteRanks:
    """Ranks of another machine, as the first one sees them."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        pair: KeyPair | None,
        actor: Any,
        config: str,
    ) -> None:
        """Has an actor start them; the pair is that of the cluster's members, None on loopback.
        Raises `LoadError` if it does not begin.
        """
        self._actor = actor
        self._failure: str | None = None
        self._lock = threading.Lock()  # a socket is one thread's at a time
        try:
            self._endpoint = ray.get(actor.endpoint.remote(), timeout=START_SECONDS)
        except RayError as error:
            raise LoadError(f"no ranks on another machine: {error}") from None
        self._socket = member_dealer(context, self._endpoint, pair, SILENT_MS)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        # What is lost with a connection would be missed by the ranks: the worker has to end.
        self._events = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        if not self._socket.poll(int(START_SECONDS * 1000), zmq.POLLOUT):
            raise LoadError(f"{self._endpoint} is not reached: does a firewall close its port?")
        self.pass_on(config.encode())
        threading.Thread(target=self._watch, daemon=True).start()

    def pass_on(self, frame: bytes) -> None:
        """Tells them what this rank has been told."""
        with self._lock, suppress(zmq.Again):  # without a connection the worker ends
            self._socket.send(frame, zmq.NOBLOCK)

    def failure(self) -> str | None:
        """Why the worker has to end; None while all is well. To be asked all the time."""
        with self._lock:
            if not self._socket.closed and self._events.poll(0):
                return f"the connection to {self._endpoint} has ended"
        return self._failure

    def close(self) -> None:
        """Has them end."""
        with self._lock:
            self._socket.disable_monitor()
            self._socket.close(LINGER_MS)
        ray.kill(self._actor)

    def _watch(self) -> None:
        try:
            self._failure = ray.get(self._actor.failure.remote())
        except RayError as error:
            self._failure = f"the actor at {self._endpoint} has ended: {error}"


def run_first(endpoint: str, config: WorkerConfig) -> int:
    """Runs the first rank. Where the others are is in the settings of the server's extension."""
    further = FurtherRanks(**config.extension["ranks"])
    config = config.model_copy(update={"machines": further.machines})
    return run(endpoint, config, partial(start_team, further))


def start_team(
    further: FurtherRanks, context: zmq.Context[zmq.Socket[bytes]], size: int, config: str
) -> Team:
    """Opens the meeting, and starts the ranks of this machine and of the node's others, so many in
    all, with the worker's own configuration, as JSON. Raises `LoadError` if one does not begin, and
    `KeyProblem` if the members' keys cannot be read.
    """
    folder = Path(further.folder)
    token, machine = read_folder(folder)
    each = size // further.machines
    use_interface_of(machine.host)
    meeting = Meeting.open(machine.host)
    pair = read_member_pair(member_keys_file(folder, token))
    try:
        connect(token.ray, machine.host, folder)
        group = machines_of(further.node)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LoadError(f"Ray does not answer, or does not know the node: {error}") from None
    gpus = each if machine.gpus else 0
    remote = []
    for number in range(1, further.machines):
        ranks = list(range(number * each, (number + 1) * each))
        actor = _actor(group, number, gpus).remote(ranks, meeting.place)
        remote.append(RemoteRanks(context, pair, actor, config))
    return Team(RankProcesses(context, range(1, each), config, meeting.place), meeting, remote)


def _actor(group: PlacementGroup, number: int, gpus: int) -> Any:
    room = bundle(gpus)
    return ray.remote(RankActor).options(
        num_cpus=0,
        num_gpus=room.pop("GPU", 0),
        resources=room,
        scheduling_strategy=PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=number
        ),
    )


if __name__ == "__main__":
    sys.exit(main(run_first))
