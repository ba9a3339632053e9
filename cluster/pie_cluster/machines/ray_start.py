"""`python -m pie_cluster.machines.ray_start`: `ray start`, as a cluster's machines need it.

Its process becomes Ray's own one: on a head Ray's store (GCS), else an agent (raylet). Neither has
the dashboard, the autoscaler or processes for metrics and environments of tasks beside it. A head
ends with its parent, an agent does not.

Several agents may be on loopback. Ray takes the machine's own address where 127.0.0.1 was given,
and other machines would reach it, unless a variable says that clusters are not supported here; but
then its command refuses to start a second agent. So the command alone is told that they are
supported.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import SimpleNamespace
from typing import Any

from ray._private import node, ray_constants, services
from ray.scripts import scripts

from pie_py.config.child import PR_SET_PDEATHSIG, exit_with_parent

_ray: Any = node
_services: Any = services
# An agent does not go without these two: they wait for its end, at ports where nothing listens.
BESIDE = "dashboard_agent_command", "runtime_env_agent_command"
PORTS = "metrics_agent", "metrics_export", "dashboard_agent_listen", "runtime_env_agent"


class _Constants:
    """Ray's constants, but for one."""

    ENABLE_RAY_CLUSTER = True

    def __getattr__(self, name: str) -> Any:
        return getattr(ray_constants, name)


def _nothing(*_: object, **__: object) -> None:
    """Starts none."""


def _become(command: list[str], kind: str, *_: object, **__: object) -> object:
    """Is one of Ray's processes from now on. A store has to be told of itself when it listens: a
    process does this which nobody waits for.
    """
    if kind == ray_constants.PROCESS_TYPE_RAYLET:
        command += [f"--{name}=tail --pid={os.getpid()} -f /dev/null" for name in BESIDE]
        command += [f"--{name}_port=1" for name in PORTS]
    elif os.fork() == 0:
        if os.fork():
            os._exit(0)
        exit_with_parent()
        return SimpleNamespace(process=SimpleNamespace(poll=lambda: None))
    else:
        os.wait()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # it does not heed SIGTERM
    return os.execv(command[0], command)


def _own_folders(*_: object, **__: object) -> list[Any]:
    """Stands for the head's agent, whose folders an agent takes where it is given none."""
    folder = sys.argv[sys.argv.index("--temp-dir") + 1]
    alive = _ray.GcsNodeInfo.GcsNodeState.ALIVE
    return [SimpleNamespace(temp_dir=folder, session_dir=folder, state=alive)]


if __name__ == "__main__":
    _services.start_ray_process = _become
    if "--head" in sys.argv:
        _ray.Node.start_monitor = _ray.Node.start_api_server = _nothing
        _ray.Node.start_ray_processes = lambda _: os._exit(0)  # it is told
    else:
        _ray.get_all_node_info_until_retrieved = _own_folders
    commands: Any = scripts
    commands.ray_constants = _Constants()
    commands.main()
