"""A Ray that was there before the cluster: how it is found, and how it runs the nodes of a machine.

`python -m pie_cluster.machines.foreign FOLDER` places the nodes of a folder on this machine's node
of Ray, and stays. Their actors are this process's own, so Ray ends them when it ends, however that
comes; when Ray has gone, it ends. Nodes of a machine that is lost it places as well, while there is
room: of several machines one does, for Ray gives a name once.
"""

from __future__ import annotations

import platform
import select
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private import services, state
from ray._private.state import available_resources_per_node
from ray._private.utils import check_version_info
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pie_cluster.machines.actors import PREFIX, NodeActor, connect, end_in_order, placed_nodes
from pie_cluster.machines.settings import ClusterProblem, Names, WrongSettings, read_folder
from pie_py.config.child import LEAVE_SECONDS, exit_with_parent, report_error, report_ready
from pie_py.config.endpoint import answers, parse_endpoint
from pie_py.config.processes import python_command

ROOM_SECONDS = 5.0  # for what has just ended to make room
PLACE_SECONDS = 60.0  # for actors to begin
LOOK_SECONDS = 1.0


def find_ray(address: str) -> str:
    """Where the head is, as HOST:PORT, of a Ray of which this machine is a node; `auto` stands for
    the Ray of this machine. Raises `WrongSettings` for an address that is none, or one of Ray's
    server for clients, and `ClusterProblem` if there is no such Ray, it is of another version, or
    this machine is no node of it.
    """
    if address.startswith("ray://"):
        raise WrongSettings(
            f"{address} is for drivers outside of Ray, and nodes need a folder on a machine of it:"
            " call this on one, and name the head of Ray instead (HOST:6379) or auto"
        )
    try:
        found = services.canonicalize_bootstrap_address_or_die(address)
        listens = answers(parse_endpoint(f"tcp://{found}"))
    except ValueError:
        raise WrongSettings(f"{address} is no address of Ray: give HOST:PORT or auto") from None
    except ConnectionError as error:
        raise ClusterProblem(f"no Ray is found: {error}") from None
    if not listens:
        raise ClusterProblem(
            f"no Ray answers at {found}: start one with `ray start --head`, or leave --address out"
        )
    try:
        client = GcsClient(address=found)
        metadata = get_cluster_metadata(client)
    except (RayError, RuntimeError, ValueError, AttributeError) as error:
        raise ClusterProblem(f"what listens at {found} does not answer as Ray: {error}") from None
    try:
        check_version_info(metadata, "this machine")
    except RuntimeError:
        raise ClusterProblem(
            f"the Ray at {found} is {metadata['ray_version']} with Python"
            f" {metadata['python_version']}, and here is {ray.__version__} with Python"
            f" {platform.python_version()}: they must be the same"
        ) from None
    try:
        services.get_node_to_connect_for_driver(client, timeout_seconds=3)
    except RuntimeError:
        raise ClusterProblem(
            f"this machine is no node of the Ray at {found}: `ray start --address={found}` makes"
            " it one"
        ) from None
    return str(found)


def _known_host(address: str, host: str) -> str | None:
    """A machine's address, if one of Ray's nodes has it: there may be several on a machine."""
    nodes = GcsClient(address=address).get_all_node_info().values()
    return host if any(node.node_manager_address == host for node in nodes) else None


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
    return kind.options(
        name=PREFIX + name,
        max_restarts=-1,
        num_cpus=1,
        num_gpus=gpus,
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    ).remote(name)


class Placed:
    """The cluster's nodes, with the node of Ray where each was seen last."""

    def __init__(self) -> None:
        """Has seen none yet."""
        self.seen: dict[str, str] = {}

    def lost(self, alive: set[str]) -> list[str]:
        """Looks again; returns those that have gone together with their node of Ray, which is not
        among those that are alive.
        """
        named = placed_nodes()
        for name in named:
            if self.seen.get(name) not in alive:  # it is new, or another machine has placed it
                where = _place_of(name)
                if where in alive:
                    self.seen[name] = where
        gone = [name for name in self.seen if name not in named]
        for name in gone:
            if self.seen[name] in alive:  # it was ended
                del self.seen[name]
        return [name for name in gone if name in self.seen]


def _place_of(name: str) -> str:
    with suppress(ValueError):  # it has ended just then
        actor = ray.get_actor(PREFIX + name)._actor_id.hex()
        return str(state.actors(actor).get("Address", {}).get("NodeID", ""))
    return ""


def _take_over(names: list[str], gpus: int, here: str) -> dict[str, Any]:
    """Starts nodes on a node of Ray, as far as it has room and no other one has done so."""
    taken = {}
    for name in names:
        if _free(here, "CPU") >= 1 and _free(here, "GPU") >= gpus:
            with suppress(ValueError):  # it has another place by now
                taken[name] = _start(name, gpus, here)
    return taken


def _free(here: str, resource: str) -> float:
    free: dict[str, dict[str, float]] = available_resources_per_node()  # type: ignore[no-untyped-call]
    return free.get(here, {}).get(resource, 0)


def _alive() -> set[str]:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return {node["NodeID"] for node in nodes if node["Alive"]}


def main() -> int:
    """Keeps the nodes of a machine."""
    exit_with_parent(LEAVE_SECONDS + LOOK_SECONDS)
    folder = Path(sys.argv[1])
    token, machine = read_folder(folder)
    try:
        address = find_ray(token.ray)
        environment = {
            "py_executable": shlex.join(python_command()),
            "env_vars": {"PIE_PY_CLUSTER_FOLDER": str(folder)},
        }
        host = _known_host(address, machine.host)
        connect(address, host, folder, token.namespace, runtime_env=environment)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # standard input ends as well
        here = ray.get_runtime_context().get_node_id()
        gpus = token.local_ranks if machine.gpus else 0
        placed = Placed()
        placed.lost(_alive())  # another machine may have this one's, from when it was lost
        own = [name for name in Names(folder).read() if placed.seen.get(name, here) == here]
        actors = place(own, gpus, here)
    except GetTimeoutError:
        report_error(f"Ray has not started the nodes within {PLACE_SECONDS:g} s; see its logs")
        return 1
    except (ClusterProblem, LookupError, ValueError, RuntimeError, RayError) as error:
        report_error(str(error))
        return 1
    report_ready(machine.host)
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        alive = _alive()
        if here not in alive:
            return 1
        lost = placed.lost(alive)
        room = machine.room - len(actors.keys() & placed.seen.keys())
        actors |= _take_over(lost[: max(0, room)], gpus, here)
    end_in_order(list(actors.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
