"""What runs in Ray: one actor per node, which keeps its control process.

`python -m pie_py.cluster.actors FOLDER` has Ray place the nodes of a machine's folder that it does
not have yet. It may be run again at any time.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pie_py.cluster.node_keeper import NodeKeeper
from pie_py.cluster.settings import Machine, Names, Token, machine_resource
from pie_py.config.child import tell_ready
from pie_py.config.server import ServerConfig

log = logging.getLogger("pie.actors")

NAMESPACE = "pie"
PREFIX = "node-"
DROP_SECONDS = 1.0  # before another try to note that a node is drained


class NodeActor:
    """Keeps a node on the machine that Ray has chosen; if that ends, Ray starts it elsewhere."""

    def __init__(self, node: str) -> None:
        """Starts keeping; the directory tells when the node serves."""
        self._folder = Path(os.environ["PIE_PY_CLUSTER_FOLDER"])
        self._node = node
        self._keeper = NodeKeeper(node, self._folder)
        threading.Thread(target=self._keep, daemon=True).start()

    def facts(self) -> dict[str, Any]:
        """Its life, and the process identifiers of actor and control process."""
        return {"life": self._keeper.life, "actor": os.getpid(), "control": self._keeper.pid}

    def _keep(self) -> None:
        self._keeper.run()
        # It is drained: the actor goes, and must not be started again, by Ray or by its machine.
        while not self._dropped():
            time.sleep(DROP_SECONDS)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _dropped(self) -> bool:
        try:
            Names(self._folder).drop(self._node)
        except OSError as error:  # a full disk
            log.error("%s is drained, which cannot be noted: %s", self._node, error)
            return False
        return True


def connect(token: Token, host: str) -> None:
    """Connects this process to Ray, as a driver; `ray_environment` must be its environment.

    Args:
        token: of the cluster.
        host: this machine's address, as Ray knows it.
    """
    ray.init(
        address=token.ray,
        _node_ip_address=host,
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        logging_level=logging.ERROR,
    )


def place_nodes(names: list[str], gpus: int, resource: str) -> None:
    """Has Ray place nodes that it does not have.

    Args:
        names: of the nodes.
        gpus: of each.
        resource: of the machine that they belong to; they go elsewhere only when it has died.

    Raises:
        LookupError: if Ray does not know the machine yet.
    """
    machines: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    for known in machines:
        if known["Alive"] and resource in known["Resources"]:
            machine = NodeAffinitySchedulingStrategy(known["NodeID"], soft=True)
            break
    else:
        raise LookupError("Ray does not know this machine yet")
    named = placed_nodes()
    for name in names:
        if name not in named:
            _place(name, gpus, machine)


def placed_nodes() -> set[str]:
    """Names of the nodes that Ray keeps, with or without a machine."""
    named = ray.util.list_named_actors(all_namespaces=True)
    return {
        actor["name"].removeprefix(PREFIX) for actor in named if actor["namespace"] == NAMESPACE
    }


def ask_for_node(name: str, gpus: int) -> None:
    """Has Ray place a node on whatever machine has room. Until one has, Ray's autoscaler sees what
    is missing.
    """
    _place(name, gpus, "DEFAULT")


def give_up_node(name: str) -> None:
    """A node that was asked for is not wanted any more."""
    with suppress(ValueError):  # Ray does not know it any more
        ray.kill(ray.get_actor(PREFIX + name, namespace=NAMESPACE), no_restart=True)


def _place(name: str, gpus: int, where: NodeAffinitySchedulingStrategy | str) -> None:
    actor = ray.remote(NodeActor).options(
        name=PREFIX + name,
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        max_task_retries=0,
        num_cpus=0,
        num_gpus=gpus,
        resources={"pie_node": 1},
        scheduling_strategy=where,
    )
    actor.remote(name)


def node_facts(node: str, seconds: float = 10.0) -> dict[str, Any]:
    """What a node's actor tells of itself."""
    actor = ray.get_actor(PREFIX + node, namespace=NAMESPACE)
    facts: Any = ray.get(actor.facts.remote(), timeout=seconds)
    return dict(facts)


def main() -> int:
    """Places the nodes of a machine."""
    folder = Path(sys.argv[1])
    token = Token.read(folder / "token.json")
    machine = Machine.model_validate_json((folder / "machine.json").read_text())
    size = ServerConfig.model_validate(token.server).tensor_parallel_size
    connect(token, machine.host)
    try:
        place_nodes(Names(folder).read(), size if machine.gpus else 0, machine_resource(folder))
    except LookupError as error:
        log.warning("%s", error)
        return 1  # the machine's keeper tries again
    tell_ready(machine.host)
    return 0


if __name__ == "__main__":
    sys.exit(main())
