"""A Ray that was there before the cluster: how it is found, and how it runs the nodes of a machine.

`python -m pie_cluster.machines.foreign FOLDER` places the nodes of a folder on this machine's node
of Ray, and stays. Their actors are this process's own, so Ray ends them when it ends, however that
comes; when Ray has gone, it ends. Nodes of a machine that is lost it places as well, while there is
room: of several machines one does, for Ray gives a name once.
"""

from __future__ import annotations

import select
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private import state
from ray._private.state import available_resources_per_node
from ray._private.utils import check_version_info
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pie_cluster.machines.actors import PREFIX, NodeActor, connect, end_in_order, placed_nodes
from pie_cluster.machines.settings import ClusterProblem, Names, WrongSettings, read_folder
from pie_py.config.child import LEAVE_SECONDS, exit_with_parent, report_error, report_ready
from pie_py.config.endpoint import BadEndpoint, answers, parse_endpoint
from pie_py.config.processes import python_command

ROOM_SECONDS = 5.0  # for what has just ended to make room
PLACE_SECONDS = 60.0  # for actors to begin
LOOK_SECONDS = 1.0


def find_ray(address: str) -> str:
    """Where the head is, as HOST:PORT, of a Ray of which this machine is a node; `auto` stands for
    the Ray of this machine. Raises `WrongSettings` for an address that is none, or one of Ray's
    server for clients, and `ClusterProblem` if this process cannot be a driver there.
    """
    if address.startswith("ray://"):
        raise WrongSettings(
            f"{address} is for drivers outside of Ray, and nodes need a folder on a machine of it:"
            " call this on one, and name the head of Ray instead (HOST:6379) or auto"
        )
    try:
        if address != "auto" and not answers(parse_endpoint(f"tcp://{address}")):
            raise ClusterProblem(
                f"no Ray answers at {address}: start one with `ray start --head`, or leave"
                " --address out"
            )
    except BadEndpoint:
        raise WrongSettings(f"{address} is no address of Ray: give HOST:PORT or auto") from None
    try:
        if address != "auto":  # what is no Ray is waited for, for minutes, by a driver
            check_version_info(get_cluster_metadata(GcsClient(address=address)), "this machine")
    except Exception as error:  # noqa: BLE001  Ray raises what it likes
        raise _not_taken(address, str(error)) from None
    # A process of its own: a driver takes over signals, for good.
    command = [*python_command(), "-c", _FIND, address]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    if asked.returncode:
        raise _not_taken(address, (asked.stderr.strip() or "it says nothing").splitlines()[-1])
    return asked.stdout.splitlines()[-1]


_FIND = """
import logging, sys, ray
with ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR) as driver:
    print(driver.address_info["gcs_address"])
"""


def _not_taken(address: str, why: str) -> ClusterProblem:
    return ClusterProblem(
        f"the Ray at {address} does not take this machine: is it one, with the same versions of Ray"
        f" and Python, and is this machine a node of it? {why}"
    )


def place(names: list[str], gpus: int, here: str) -> dict[str, Any]:
    """Starts nodes on a node of Ray, which end when what this returns is gone. Raises `LookupError`
    if it has no room for them, and `ValueError` or `RayError` if they live already, or cannot
    begin.
    """
    end = time.monotonic() + ROOM_SECONDS
    for resource, needed in {"CPU": len(names), "GPU": gpus * len(names)}.items():
        while (free := _free(here, resource)) < needed:
            if time.monotonic() > end:
                raise LookupError(
                    f"the nodes need {needed} {resource} of Ray on this machine, which has {free:g}"
                    " free: start Ray with more of it, or fewer nodes"
                )
            time.sleep(LOOK_SECONDS)
    actors = {name: _start(name, gpus, here) for name in names}
    ray.get([actor.folder.remote() for actor in actors.values()], timeout=PLACE_SECONDS)
    return actors


def _start(name: str, gpus: int, here: str) -> Any:
    kind: Any = ray.remote(NodeActor)
    where = NodeAffinitySchedulingStrategy(here, soft=False)
    options = {"num_cpus": 1, "num_gpus": gpus, "scheduling_strategy": where}
    return kind.options(name=PREFIX + name, max_restarts=-1, **options).remote(name)


def lost_nodes(seen: dict[str, str], alive: set[str]) -> list[str]:
    """Nodes that have gone together with their node of Ray, which is not among those that are
    alive; `seen` has where each was seen last, and is brought up to date.
    """
    named = placed_nodes()
    for name in named:
        with suppress(ValueError):  # it has ended just then
            actor = ray.get_actor(PREFIX + name)._actor_id.hex()
            where = state.actors(actor).get("Address", {}).get("NodeID", "")
            if where in alive:
                seen[name] = where
    for name in seen.keys() - named:
        if seen[name] in alive:  # it was ended
            del seen[name]
    return sorted(seen.keys() - named)


def _free(here: str, resource: str) -> float:
    free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    return free.get(here, {}).get(resource, 0)


def _known_host(address: str, host: str) -> str | None:
    """A machine's address, if a living node of Ray has it: there may be several on a machine, and
    a driver ends with the one that it is on.
    """
    nodes = GcsClient(address=address).get_all_node_info().values()
    return host if any(node.node_manager_address == host for node in nodes) else None


def _alive() -> set[str]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return {node["NodeID"] for node in nodes if node["Alive"]}


def main() -> int:
    """Keeps the nodes of a machine."""
    exit_with_parent(LEAVE_SECONDS + LOOK_SECONDS)
    folder = Path(sys.argv[1])
    token, machine = read_folder(folder)
    environment = {
        "py_executable": shlex.join(python_command()),
        "env_vars": {"PIE_PY_CLUSTER_FOLDER": str(folder)},
    }
    gpus = token.local_ranks if machine.gpus else 0
    seen: dict[str, str] = {}
    try:
        host = _known_host(token.ray, machine.host)
        connect(token.ray, host, folder, token.namespace, runtime_env=environment)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # standard input ends as well
        here = ray.get_runtime_context().get_node_id()
        lost_nodes(seen, _alive())  # another machine may have this one's, from when it was lost
        own = [name for name in Names(folder).read() if seen.get(name, here) == here]
        actors = place(own, gpus, here)
    except (ConnectionError, LookupError, ValueError, RuntimeError, RayError) as error:
        report_error(str(error) or f"Ray has not started the nodes within {PLACE_SECONDS:g} s")
        return 1
    report_ready(machine.host)
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        alive = _alive()
        if here not in alive:
            return 1
        for name in lost_nodes(seen, alive):
            has_room = len(actors.keys() & seen.keys()) < machine.room
            if has_room and _free(here, "CPU") >= 1 and _free(here, "GPU") >= gpus:
                with suppress(ValueError):  # it has another place by now
                    actors[name] = _start(name, gpus, here)
    end_in_order(list(actors.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
