"""Places of nodes in Ray: an actor each, on the machine that asked for it.

`python -m pie_cluster.machines.actors FOLDER` has Ray place the nodes of a machine's folder, and
with `forget` behind it end those that are on the machine, which leaves. Both may be run again at
any time. In a Ray that was there before it stays, and the nodes end with it.
"""

from __future__ import annotations

import logging
import os
import select
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import state, utils
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pie_cluster.directory.asking import DirectoryAway, DirectoryRefuses
from pie_cluster.machines.node_actor import NodeActor, alive
from pie_cluster.machines.settings import (
    Machine,
    Token,
    directory_of,
    machine_resource,
    node_names,
    read_folder,
    write_names,
)
from pie_py.config.child import LEAVE_SECONDS, exit_with_parent, report_error, report_ready
from pie_py.config.processes import python_command

log = logging.getLogger("pie.actors")
_ray_utils: Any = utils

ROOM_SECONDS = 30.0  # for a machine's nodes to be placed, before that is tried anew
LOOK_SECONDS = 0.2
NO_ROOM = (
    "Ray has not started the nodes: in a Ray that was there before each takes one of its CPUs on"
    " this machine, and GPUs if there are some; start Ray with more, or fewer nodes"
)


def connect(token: Token, machine: Machine, folder: Path) -> None:
    """Connects this process to Ray, as a driver that goes on in the machine's folder; of the
    cluster's own Ray, `ray_environment` must be its environment.
    """
    # Ray's actors import from their driver's working directory, too: only we write to this one.
    os.chdir(folder)
    # Ray tells its head, in the clear, the command line, where a worker has its configuration.
    _ray_utils.get_entrypoint_name = lambda: "pie_cluster"
    host: str | None = machine.host
    of_others: dict[str, Any] = {}
    if token.namespace:
        nodes = GcsClient(address=token.ray).get_all_node_info().values()
        # Several may be on a machine, and a driver ends with the one that it is on.
        host = host if any(node.node_manager_address == host for node in nodes) else None
        variables = {"PIE_PY_CLUSTER_FOLDER": str(folder)}
        environment = {"py_executable": shlex.join(python_command()), "env_vars": variables}
        of_others = {"runtime_env": environment}
    ray.init(
        address=token.ray,
        _node_ip_address=host,
        namespace=token.namespace or "pie",
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
        **of_others,
    )


def name_of(token: Token, node: str) -> str:
    """Ray's name of a node's actor."""
    return f"{token.namespace or 'pie'}-node-{node}"


def _places(token: Token) -> dict[str, str]:
    """The machine of each node that Ray keeps; empty of one that has none now."""
    actors: dict[str, Any] = state.actors()
    prefix = name_of(token, "")
    return {
        actor["Name"].removeprefix(prefix): actor["Address"]["NodeID"]
        if actor["State"] == "ALIVE"
        else ""
        for actor in actors.values()
        if actor["Name"].startswith(prefix) and actor["State"] != "DEAD"
    }


def _own_nodes(folder: Path, token: Token, machine: Machine, elsewhere: set[str]) -> list[str]:
    """The nodes of a machine: those that it had, and new ones for those that others have, since its
    folder is a copy. Raises as the directory.
    """
    former = node_names(folder)
    count = machine.nodes if former is None else len(former)
    names = [name for name in former or () if name not in elsewhere]
    if len(names) < count:
        more = count - len(names)
        names += directory_of(token).ask("allot", count=more, cluster=token.cluster)
    if names != former:
        write_names(folder, names)
    return names


def _placed(folder: Path, token: Token, machine: Machine, here: str) -> bool:
    """Has Ray place nodes of this machine that it does not have. True if all are placed."""
    places, own = _places(token), machine_resource(folder, machine)
    others = {place for place, each in alive().items() if own not in each["Resources"]} - {here}
    elsewhere = {name for name, place in places.items() if place in others}
    names = _own_nodes(folder, token, machine, elsewhere)
    for name in set(names) - places.keys():
        options: dict[str, Any] = {"resources": {own: 1.0}, "num_cpus": 0, "lifetime": "detached"}
        if token.namespace:
            affinity = NodeAffinitySchedulingStrategy(here, soft=False)
            options = {"scheduling_strategy": affinity, "num_cpus": 1}
        actor = ray.remote(NodeActor).options(
            name=name_of(token, name),
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=0,
            num_gpus=token.ranks if machine.gpus else 0,
            **options,
        )
        _kept.append(actor.remote(name))
    return all(places.get(name) == here for name in names)


_kept: list[Any] = []  # actors that end when nothing refers to them


def _forget(folder: Path, token: Token, here: str) -> None:
    """Ends the nodes of a machine that leaves: Ray would start them when it comes back."""
    places = _places(token)
    own = [name for name in node_names(folder) or () if places.get(name) in (here, "")]
    actors = [ray.get_actor(name_of(token, name)) for name in own]
    here_now = [actor for name, actor in zip(own, actors, strict=True) if places[name] == here]
    leaving: list[Any] = [actor.leave.remote() for actor in here_now]
    if leaving:
        ray.wait(leaving, num_returns=len(leaving), timeout=LEAVE_SECONDS)
    for name, actor in zip(own, actors, strict=True):
        ray.kill(actor, no_restart=True)
        with suppress(DirectoryAway, DirectoryRefuses):  # it would show them as lost
            directory_of(token).ask("forget", node=name)


def _here(folder: Path, token: Token, machine: Machine) -> str | None:
    """Ray's name of this machine; None if it does not know it yet."""
    if token.namespace:
        here: str = ray.get_runtime_context().get_node_id()
        return here
    own = machine_resource(folder, machine)
    return next((name for name, each in alive().items() if own in each["Resources"]), None)


def _run(folder: Path, token: Token, machine: Machine, *, forgets: bool) -> bool:
    """True if it is done; else the machine's keeper tries again."""
    end = time.monotonic() + ROOM_SECONDS
    while time.monotonic() < end:
        here = _here(folder, token, machine)
        if here is not None and forgets:
            _forget(folder, token, here)
            return True
        if here is not None and _placed(folder, token, machine, here):
            report_ready(machine.host)
            if token.namespace:
                _stay(folder, token, machine, here)
            return True
        time.sleep(LOOK_SECONDS)
    if token.namespace:
        report_error(NO_ROOM)
    log.warning("nodes of this machine have no place yet")
    return False


def _stay(folder: Path, token: Token, machine: Machine, here: str) -> None:
    """Places what has ended again, until Ray has gone, or standard input ends."""
    while here in alive():
        if select.select([sys.stdin], [], [], 1.0)[0]:
            _forget(folder, token, here)
            return
        _placed(folder, token, machine, here)


def main() -> int:
    """Places the nodes of a machine, or ends them."""
    folder = Path(sys.argv[1])
    token, machine = read_folder(folder)
    exit_with_parent(LEAVE_SECONDS + 1.0 if token.namespace else 0.0)
    try:
        connect(token, machine, folder)
        return 0 if _run(folder, token, machine, forgets=sys.argv[2:] == ["forget"]) else 1
    except DirectoryAway as error:
        log.warning("%s", error)
    except (ConnectionError, ValueError, RuntimeError, DirectoryRefuses) as error:
        report_error(str(error))
    return 1


if __name__ == "__main__":
    sys.exit(main())
