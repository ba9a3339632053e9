"""`python -m pie_cluster.ranks.worker`: a worker whose ranks are on several machines."""

from __future__ import annotations

import os
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import ray
import zmq
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pie_cluster.machines.actors import bundle, connect, machines_of
from pie_cluster.machines.settings import read_folder
from pie_cluster.ranks.actor import RankActor, use_interface_of
from pie_inference.__main__ import main
from pie_inference.errors import LoadError
from pie_inference.parallel.processes import RankProcesses
from pie_inference.parallel.ranks import Meeting
from pie_inference.parallel.team import Team
from pie_inference.serving.worker import WorkerConfig, run

START_SECONDS = 30.0  # for an actor to begin, where one of another worker may have to end
WATCH = "watch"  # calls that wait beside those that pass on


class RemoteRanks:
    """Ranks of another machine, as the first one sees them."""

    def __init__(self, actor: Any) -> None:
        """Takes their actor. Raises `LoadError` if it does not begin."""
        self._actor = actor
        self._failure: str | None = None
        try:
            ray.get(actor.__ray_ready__.remote(), timeout=START_SECONDS)
        except RayError as error:
            raise LoadError(f"no ranks on another machine: {error}") from None
        threading.Thread(target=self._watch, daemon=True).start()

    def pass_on(self, frame: bytes) -> None:
        """Tells them what this rank has been told: Ray keeps the order."""
        self._actor.pass_on.remote(frame)

    def failure(self) -> str | None:
        """Why the worker has to end; None while all is well."""
        return self._failure

    def close(self) -> None:
        """Has them end."""
        ray.kill(self._actor)

    def _watch(self) -> None:
        try:
            asked = self._actor.failure.options(concurrency_group=WATCH).remote()
            self._failure = ray.get(asked)
        except RayError as error:
            self._failure = f"an actor of ranks has ended: {error}"


def run_first(endpoint: str, config: WorkerConfig) -> int:
    """Runs the first rank. Where the others are is in the settings of the server's extension."""
    node, machines = config.extension["node"], config.extension["rank_machines"]
    return run(endpoint, config.model_copy(update={"machines": machines}), partial(_team, node))


def _team(node: str, context: zmq.Context[zmq.Socket[bytes]], size: int, config: str) -> Team:
    """Opens the meeting, and starts the ranks of this machine and of the node's others, so many in
    all, with the worker's own configuration, as JSON. Raises `LoadError` if one does not begin.
    """
    folder = Path(os.environ["PIE_PY_CLUSTER_FOLDER"])
    token, machine = read_folder(folder)
    each = token.local_ranks
    use_interface_of(machine.host)
    meeting = Meeting.open(machine.host)
    try:
        connect(token.ray, machine.host, folder)
        group = machines_of(node)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LoadError(f"Ray does not answer, or does not know the node: {error}") from None
    room = bundle(each if machine.gpus else 0)
    remote = []
    # Its types leave this option out.
    kind: Any = ray.remote(concurrency_groups={WATCH: 1})(RankActor)  # type: ignore[call-overload]
    for number in range(1, token.rank_machines):
        actor = kind.options(
            num_cpus=0,
            num_gpus=room.get("GPU", 0),
            resources={name: count for name, count in room.items() if name != "GPU"},
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
        ).remote(list(range(number * each, (number + 1) * each)), config, meeting.place)
        remote.append(RemoteRanks(actor))
    return Team(RankProcesses(context, range(1, each), config, meeting.place), meeting, remote)


if __name__ == "__main__":
    sys.exit(main(run_first))
