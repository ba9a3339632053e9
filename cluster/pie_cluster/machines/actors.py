"""Ray's actors: one per node, which keeps its control process. Where a node's ranks are on several
machines, it has a place on all of them or on none.

`python -m pie_cluster.machines.actors FOLDER` has Ray place the nodes of a machine's folder, and
with `forget` behind it end those that are on the machine, which leaves. Both may be run again at
any time.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import state, utils
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from pie_cluster.directory.asking import DirectoryAway, DirectoryRefuses
from pie_cluster.machines.node_keeper import NodeKeeper
from pie_cluster.machines.settings import (
    Machine,
    Token,
    directory_of,
    machine_resource,
    node_names,
    read_folder,
    waiting,
    write_names,
)
from pie_py.config.child import LEAVE_SECONDS, exit_with_parent, report_error, report_ready

log = logging.getLogger("pie.actors")
_ray_utils: Any = utils

NAMESPACE = "pie"
PREFIX = "node-"
ROOM_SECONDS = 60.0  # for a machine's nodes to be placed on it, before that is tried anew
LOOK_SECONDS = 0.2
NODE_ROOM = {"pie_node": 1.0}
ACTOR_ENDED = "its actor has ended; the system's log and ray/session_latest/logs tell why"


class NodeActor:
    """Keeps a node on the machine that Ray has chosen; if that ends, Ray starts it elsewhere."""

    def __init__(self, node: str) -> None:
        """Starts keeping; the directory tells when the node serves."""
        self._folder = Path(os.environ["PIE_PY_CLUSTER_FOLDER"])
        self._node = node
        context = ray.get_runtime_context()
        self._here = context.get_node_id()
        reason = ACTOR_ENDED if context.was_current_actor_reconstructed else ""
        self._keeper = NodeKeeper(node, self._folder, self._is_placed, reason)
        threading.Thread(target=self._keep, daemon=True).start()

    def begun(self) -> None:
        """Answers once it keeps the node."""

    def leave(self) -> None:
        """Ends the node in order, so that it can be killed."""
        self._keeper.leave()

    def _is_placed(self) -> bool:
        """Whether this is the node's place still: a machine that was cut off is dead to Ray, which
        starts the node anew and has this process end. Waits for Ray's head.
        """
        return self._here in alive()

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
            names = node_names(self._folder) or []
            write_names(self._folder, [name for name in names if name != self._node])
        except OSError as error:  # a full disk
            log.error("%s is drained, which cannot be noted: %s", self._node, error)
            return False
        return True


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


def alive() -> dict[str, Any]:
    """Resources of the machines that Ray takes for alive, by its names of them."""
    machines: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return {each["NodeID"]: each["Resources"] for each in machines if each["Alive"]}


def own_nodes(folder: Path, token: Token, machine: Machine, elsewhere: Set[str]) -> list[str]:
    """The nodes of a machine: those that it had, and new ones for those that others have, since
    this machine was lost or its folder is a copy. Raises as the directory.
    """
    former = node_names(folder)
    count = machine.nodes if former is None else len(former)
    names = [name for name in former or () if name not in elsewhere]
    if len(names) < count:
        names += directory_of(token).allot(count - len(names), token.models)
    if names != former:
        write_names(folder, names)
    return names


def _places() -> dict[str, str]:
    """The machine of each node that Ray keeps; empty of one that has none now."""
    actors: dict[str, Any] = state.actors()
    return {
        actor["Name"].removeprefix(PREFIX): actor["Address"]["NodeID"]
        if actor["State"] == "ALIVE"
        else ""
        for actor in actors.values()
        if actor["Name"].startswith(PREFIX) and actor["State"] != "DEAD"
    }


def place_nodes(folder: Path, token: Token, machine: Machine, here: str) -> bool:
    """Has Ray place nodes of this machine that it does not have: on it, or elsewhere once it has
    died. True if they are placed.

    Those of machines that have died, which Ray starts wherever there is room, keep what these leave
    of it; others end, and Ray forgets them.
    """
    places = _places()
    elsewhere = {name for name, place in places.items() if place not in (here, "")}
    gpus = token.local_ranks if machine.gpus else 0
    if token.rank_machines > 1:
        names = own_nodes(folder, token, machine, frozenset())
        _tell_of_waiting(folder, token, machine, names)
        for name in set(names) - places.keys():
            group = _new_group(name, gpus, token.rank_machines)
            place_node(name, gpus, PlacementGroupSchedulingStrategy(group, 0))
        return True
    names = own_nodes(folder, token, machine, elsewhere)
    for name in set(names) - places.keys():
        place_node(name, gpus, NodeAffinitySchedulingStrategy(here, soft=True))
    if all(places.get(name) == here for name in names):
        return True
    guests = sorted(name for name in places if places[name] == here and name not in names)
    for name in guests[: max(0, len(guests) + len(names) - machine.room)]:
        log.warning("%s, of a machine that has died, gives its place to this one's", name)
        give_up_node(name)
    return False


def _tell_of_waiting(folder: Path, token: Token, machine: Machine, names: list[str]) -> None:
    """The directory shows nodes that wait for other machines: nothing of them runs before."""
    directory = directory_of(token)
    known = {node.node for node in directory.nodes()}
    for name in [name for name in names if name not in known]:
        try:
            directory.begin(name, waiting(token, machine))
        except DirectoryRefuses as error:
            if error.code != "drained":  # where another machine had it
                raise
            names.remove(name)
            write_names(folder, names)


def _new_group(name: str, gpus: int, machines: int) -> PlacementGroup:
    """Places on so many machines at once, with so many GPUs on each, or on none. The worker of the
    node has Ray start ranks on all but the first.
    """
    try:
        return machines_of(name)
    except ValueError:  # there is none yet
        made: PlacementGroup = ray.util.placement_group(
            [bundle(gpus)] * machines,
            strategy="STRICT_SPREAD",
            name=PREFIX + name,
            lifetime="detached",
        )
    return made


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


def forget_nodes(names: list[str], here: str, token: Token) -> None:
    """Ends the nodes of a machine that leaves: Ray would keep them, and start them where there is
    room for others. Those that are elsewhere stay.
    """
    places = _places()
    own = [name for name in names if places.get(name) in (here, "")]
    running = [name for name in own if places[name] == here]
    end_in_order([ray.get_actor(PREFIX + name, namespace=NAMESPACE) for name in running])
    for name in own:
        give_up_node(name)
        with suppress(DirectoryAway, DirectoryRefuses):  # it would show them as lost
            directory_of(token).ask("forget", node=name)


def end_in_order(actors: list[Any]) -> None:
    """Has nodes end, as far as their actors answer, which are to be killed then."""
    leaving = [actor.leave.remote() for actor in actors]
    if leaving:
        ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_SECONDS)


def place_node(name: str, gpus: int, where: Any) -> None:
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


def main() -> int:
    """Places the nodes of a machine, or ends them."""
    exit_with_parent()
    folder = Path(sys.argv[1])
    token, machine = read_folder(folder)
    connect(token.ray, machine.host, folder)
    own = machine_resource(folder, machine)
    end = time.monotonic() + ROOM_SECONDS
    while time.monotonic() < end:
        here = next((name for name, has in alive().items() if own in has), None)
        try:
            if here is None:
                pass  # its agent may have been started just now
            elif sys.argv[2:] == ["forget"]:
                forget_nodes(node_names(folder) or [], here, token)
                return 0
            elif place_nodes(folder, token, machine, here):
                report_ready(machine.host)
                return 0
        except DirectoryAway as error:
            log.warning("%s", error)
        except DirectoryRefuses as error:
            report_error(str(error))
            return 1
        time.sleep(LOOK_SECONDS)
    log.warning("nodes of this machine have no place yet")
    return 1  # the machine's keeper tries again


if __name__ == "__main__":
    sys.exit(main())
