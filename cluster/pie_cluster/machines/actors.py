"""Ray's actors: one per node, which keeps its control process. Where a node's ranks are on several
machines, it has a place on all of them or on none.

`python -m pie_cluster.machines.actors FOLDER` has Ray place the nodes of a machine's folder that
it does not have yet, and with `forget` behind it end those that are on the machine, which leaves.
Both may be run again at any time.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import ray
from ray._private import utils
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from pie_cluster.directory.asking import DirectoryAway, DirectoryRefuses
from pie_cluster.machines.node_keeper import NodeKeeper, always
from pie_cluster.machines.settings import (
    Machine,
    Names,
    Token,
    directory_of,
    machine_resource,
    read_folder,
    waiting,
)
from pie_py.config.child import LEAVE_SECONDS, exit_with_parent, report_ready

log = logging.getLogger("pie.actors")
_ray_utils: Any = utils

NAMESPACE = "pie"
PREFIX = "node-"
PLACE_SECONDS = 2.0  # for an actor to say where it is
ROOM_SECONDS = 60.0  # for a machine's nodes to be placed on it, before that is tried anew
LOOK_SECONDS = 0.5  # between two looks whether a node has all of its machines
NODE_ROOM = {"pie_node": 1.0}
ACTOR_ENDED = "its actor has ended; the system's log and ray/session_latest/logs tell why"

Strategy: TypeAlias = NodeAffinitySchedulingStrategy | PlacementGroupSchedulingStrategy


class NodeActor:
    """Keeps a node on the machine that Ray has chosen; if that ends, Ray starts it elsewhere."""

    def __init__(self, node: str) -> None:
        """Starts keeping; the directory tells when the node serves."""
        self._folder = Path(os.environ["PIE_PY_CLUSTER_FOLDER"])
        self._node = node
        is_whole = always
        if Token.read(self._folder / "token.json").rank_machines > 1:
            is_whole = _Machines(node).are_there
        is_another = ray.get_runtime_context().was_current_actor_reconstructed
        self._keeper = NodeKeeper(node, self._folder, is_whole, ACTOR_ENDED if is_another else "")
        threading.Thread(target=self._keep, daemon=True).start()

    def folder(self) -> str:
        """That of the machine where it is."""
        return str(self._folder)

    def leave(self) -> None:
        """Ends the node in order, so that it can be killed."""
        self._keeper.leave()

    def _keep(self) -> None:
        self._keeper.run()
        if self._keeper.left:
            return
        # It is drained: the actor goes, and must not be started again, by Ray or by its machine.
        while not self._dropped():
            time.sleep(1.0)
        _give_back(self._node)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _dropped(self) -> bool:
        try:
            Names(self._folder).drop(self._node)
        except OSError as error:  # a full disk
            log.error("%s is drained, which cannot be noted: %s", self._node, error)
            return False
        return True


class _Machines:
    """Watches the machines of a node."""

    def __init__(self, node: str) -> None:
        self._group = machines_of(node)
        self._there = True  # else its actor would not be placed
        threading.Thread(target=self._watch, daemon=True).start()

    def are_there(self) -> bool:
        """True if none is lost, as far as is known while Ray's head is away."""
        return self._there

    def _watch(self) -> None:
        while True:
            with suppress(RayError):
                table = ray.util.placement_group_table(self._group)
                self._there = table["state"] == "CREATED"
            time.sleep(LOOK_SECONDS)


def connect(
    address: str, host: str | None, folder: Path, namespace: str = NAMESPACE, **more: Any
) -> None:
    """Connects this process to Ray, as a driver that goes on in the machine's folder; of the
    cluster's own Ray, `ray_environment` must be its environment. The host is this machine's
    address, as Ray knows it.
    """
    # Ray's actors import from their driver's working directory, too: only we write to this one.
    os.chdir(folder)
    # Ray tells its head, in the clear, the command line, where a worker has its configuration.
    _ray_utils.get_entrypoint_name = lambda: "pie_cluster"
    ray.init(
        address=address,
        _node_ip_address=host,
        namespace=namespace,
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
        **more,
    )


def place_nodes(names: list[str], gpus: int, folder: Path, room: int) -> None:
    """Has Ray place nodes of this machine that it does not have, and waits until they are placed.
    They go elsewhere only when this machine has died.

    It waits for Ray to know the machine, too: its agent may have been started just now.

    Those of machines that have died, which Ray starts wherever there is room, keep what these leave
    of the room for so many nodes; others end, and Ray forgets them. Raises `LookupError` if Ray
    does not know the machine, or nodes have no place, for a minute.
    """
    end = time.monotonic() + ROOM_SECONDS
    while (node_id := _node_id(machine_resource(folder))) is None:
        if time.monotonic() > end:
            raise LookupError("Ray does not know this machine yet")
        time.sleep(0.1)
    machine = NodeAffinitySchedulingStrategy(node_id, soft=True)
    named = placed_nodes()
    for name in names:
        if name not in named:
            place_node(name, gpus, machine)
    while len(_folders(names)) < len(names):
        if time.monotonic() > end:
            raise LookupError("nodes of this machine have no place yet")
        others = _folders(sorted(placed_nodes() - set(names)))
        here = [name for name, where in others.items() if where == str(folder)]
        for name in here[: max(0, len(here) + len(names) - room)]:
            log.warning("%s, of a machine that has died, gives its place to this one's", name)
            give_up_node(name)


def _node_id(resource: str) -> str | None:
    """Ray's name of the machine that has a resource; None if none has."""
    machines: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    found = (known for known in machines if known["Alive"] and resource in known["Resources"])
    return next((str(known["NodeID"]) for known in found), None)


def _folders(names: list[str]) -> dict[str, str]:
    """The folders of the machines where nodes are, of those that are anywhere."""
    actors, found = {}, {}
    for name in names:
        with suppress(ValueError):  # Ray does not know it any more
            actor: Any = ray.get_actor(PREFIX + name, namespace=NAMESPACE)
            actors[actor.folder.remote()] = name
    if not actors:
        return {}
    for answer in ray.wait(list(actors), num_returns=len(actors), timeout=PLACE_SECONDS)[0]:
        with suppress(RayError):  # it has ended just then
            found[actors[answer]] = str(ray.get(answer))
    return found


def placed_nodes() -> set[str]:
    """Names of the nodes that Ray keeps, with or without a machine."""
    named = ray.util.list_named_actors()
    return {name.removeprefix(PREFIX) for name in named if name.startswith(PREFIX)}


def place_on_machines(names: list[str], gpus: int, machines: int) -> None:
    """Has Ray place nodes that it does not have, each on so many machines at once, or none of it,
    with so many GPUs on each. Its worker has Ray start ranks on all but the first.
    """
    named = placed_nodes()
    for name in names:
        if name not in named:
            try:
                group = machines_of(name)
            except ValueError:  # there is none yet
                group = ray.util.placement_group(
                    [bundle(gpus)] * machines,
                    strategy="STRICT_SPREAD",
                    name=PREFIX + name,
                    lifetime="detached",
                )
            place_node(name, gpus, PlacementGroupSchedulingStrategy(group, 0))


def bundle(gpus: int) -> dict[str, float]:
    """What Ray counts of a machine for its part of a node."""
    return {**NODE_ROOM, **({"GPU": gpus} if gpus else {})}


def machines_of(node: str) -> PlacementGroup:
    """The machines of a node whose ranks are on several. Raises `ValueError` if it has none."""
    group: PlacementGroup = ray.util.get_placement_group(PREFIX + node)
    return group


def give_up_node(name: str) -> None:
    """A node that was asked for is not wanted any more."""
    with suppress(ValueError):  # Ray does not know it any more
        ray.kill(ray.get_actor(PREFIX + name, namespace=NAMESPACE), no_restart=True)
    _give_back(name)


def _give_back(node: str) -> None:
    """The machines of a node are free for others."""
    with suppress(ValueError):  # its ranks are on one
        ray.util.remove_placement_group(machines_of(node))


def forget_nodes(names: list[str], folder: Path) -> None:
    """Ends the nodes of a machine that leaves: Ray would keep them, and start them where there is
    room for others. Those that are elsewhere stay.
    """
    folders = _folders(names)
    here = [name for name in names if folders.get(name) == str(folder)]
    end_in_order([ray.get_actor(PREFIX + name, namespace=NAMESPACE) for name in here])
    for name in names:
        if name in here or name not in folders:
            give_up_node(name)


def end_in_order(actors: list[Any]) -> None:
    """Has nodes end, as far as their actors answer, which are to be killed then."""
    leaving = [actor.leave.remote() for actor in actors]
    if leaving:
        ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_SECONDS)


def place_node(name: str, gpus: int, where: Strategy) -> None:
    """Has Ray place a node, which it keeps until it is given up."""
    actor = ray.remote(NodeActor).options(
        name=PREFIX + name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=0,
        num_gpus=gpus,
        resources=NODE_ROOM,
        scheduling_strategy=where,
    )
    actor.remote(name)


def wanted_nodes(token: Token, machine: Machine, folder: Path) -> list[str]:
    """The nodes of a machine that are to be placed. The directory shows those that wait for other
    machines: it hears of them here, since nothing of them runs before. Raises `DirectoryAway` or
    `DirectoryRefuses`: another try may do it.
    """
    names = Names(folder)
    directory = directory_of(token)
    for name in set(names.read()) - {node.node for node in directory.nodes()}:
        try:
            directory.begin(name, waiting(token, machine))
        except DirectoryRefuses as error:
            if error.code != "drained":  # where another machine had it
                raise
            names.drop(name)
    return names.read()


def main() -> int:
    """Places the nodes of a machine, or ends them."""
    exit_with_parent()
    folder = Path(sys.argv[1])
    token, machine = read_folder(folder)
    gpus = token.local_ranks if machine.gpus else 0
    connect(token.ray, machine.host, folder)
    if sys.argv[2:] == ["forget"]:
        forget_nodes(Names(folder).read(), folder)
        return 0
    try:
        if token.rank_machines > 1:
            names = wanted_nodes(token, machine, folder)
            place_on_machines(names, gpus, token.rank_machines)
        else:
            place_nodes(Names(folder).read(), gpus, folder, machine.room)
    except (LookupError, DirectoryAway, DirectoryRefuses) as error:
        log.warning("%s", error)
        return 1  # the machine's keeper tries again
    report_ready(machine.host)
    return 0


if __name__ == "__main__":
    sys.exit(main())
