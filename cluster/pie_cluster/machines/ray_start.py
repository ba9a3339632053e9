"""`python -m pie_cluster.machines.ray_start`: `ray start`, as a cluster's machines need it.

A head is Ray's store (GCS) alone, for nodes are at agents: no agent of its own, dashboard or
autoscaler is started. It ends with its parent, an agent does not.

Several agents may be on loopback. Ray takes the machine's own address where 127.0.0.1 was given,
and other machines would reach it, unless a variable says that clusters are not supported here; but
then its command refuses to start a second agent. So the command alone is told that they are
supported.
"""

from __future__ import annotations

import signal
import sys
import time
from types import SimpleNamespace
from typing import Any

from ray._private import node, ray_constants
from ray.scripts import scripts

from pie_py.config.child import exit_with_parent

LOOK_SECONDS = 0.5

_ray: Any = node


class _Constants:
    """Ray's constants, but for one."""

    ENABLE_RAY_CLUSTER = True

    def __getattr__(self, name: str) -> Any:
        return getattr(ray_constants, name)


def _nothing(*_: object, **__: object) -> None:
    """Starts none."""


def _keep_store(head: Any) -> None:
    """Keeps what the head has started, instead of starting an agent beside it."""
    while not head.dead_processes():
        time.sleep(LOOK_SECONDS)
    sys.exit(1)


def _own_folders(*_: object, **__: object) -> list[Any]:
    """Stands for the head's agent, whose folders an agent takes where it is given none."""
    folder = sys.argv[sys.argv.index("--temp-dir") + 1]
    alive = _ray.GcsNodeInfo.GcsNodeState.ALIVE
    return [SimpleNamespace(temp_dir=folder, session_dir=folder, state=alive)]


if __name__ == "__main__":
    if "--head" in sys.argv:
        exit_with_parent(number=signal.SIGTERM)  # at which it ends Ray's processes
        _ray.Node.start_monitor = _ray.Node.start_api_server = _nothing
        _ray.Node.start_ray_processes = _keep_store
    else:
        _ray.get_all_node_info_until_retrieved = _own_folders
    commands: Any = scripts
    commands.ray_constants = _Constants()
    commands.main()
