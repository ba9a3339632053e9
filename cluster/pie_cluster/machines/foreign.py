"""A Ray that was there before the cluster: how it is found, and how it runs the nodes of a machine.

`python -m pie_cluster.machines.foreign FOLDER` places the nodes of a folder on this machine's node
of Ray, and stays. Their actors are this process's own, so Ray ends them when it ends, however that
comes; when Ray has gone, it ends.
"""

from __future__ import annotations

import select
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray
from ray._common.usage.usage_lib import get_cluster_metadata
from ray._private.utils import check_version_info
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pie_cluster.directory.asking import DirectoryRefuses
from pie_cluster.machines.actors import PREFIX, NodeActor, alive, connect, end_in_order, own_nodes
from pie_cluster.machines.settings import ClusterProblem, WrongSettings, read_folder
from pie_py.config.child import LEAVE_SECONDS, exit_with_parent, report_error, report_ready
from pie_py.config.endpoint import BadEndpoint, answers, parse_endpoint
from pie_py.config.processes import python_command

PLACE_SECONDS = 30.0  # for actors to begin
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


def main() -> int:
    """Keeps the nodes of a machine."""
    exit_with_parent(LEAVE_SECONDS + LOOK_SECONDS)
    folder = Path(sys.argv[1])
    token, machine = read_folder(folder)
    environment = {
        "py_executable": shlex.join(python_command()),
        "env_vars": {"PIE_PY_CLUSTER_FOLDER": str(folder)},
    }
    try:
        nodes = GcsClient(address=token.ray).get_all_node_info().values()
        # Several may be on a machine, and a driver ends with the one that it is on.
        known = any(node.node_manager_address == machine.host for node in nodes)
        host = machine.host if known else None
        connect(token.ray, host, folder, token.namespace, runtime_env=environment)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # standard input ends as well
        here = ray.get_runtime_context().get_node_id()
        taken = {each.removeprefix(PREFIX) for each in ray.util.list_named_actors()}
        names = own_nodes(folder, token, machine, taken)
        kind: Any = ray.remote(NodeActor)
        options = {
            "num_cpus": 1,
            "num_gpus": token.local_ranks if machine.gpus else 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False),
            "max_restarts": -1,
        }
        actors = [kind.options(name=PREFIX + name, **options).remote(name) for name in names]
        ray.get([actor.begun.remote() for actor in actors], timeout=PLACE_SECONDS)
    except GetTimeoutError:
        report_error(
            f"Ray has not started the nodes within {PLACE_SECONDS:g} s: each takes one of its CPUs"
            " on this machine, and GPUs if there are some; start Ray with more, or fewer nodes"
        )
        return 1
    except (ConnectionError, ValueError, RuntimeError, RayError, DirectoryRefuses) as error:
        report_error(str(error))
        return 1
    report_ready(machine.host)
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if here not in alive():
            return 1
    end_in_order(actors)
    return 0


if __name__ == "__main__":
    sys.exit(main())
