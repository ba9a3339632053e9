"""`python -m pie_cluster.machines.ray_start`: `ray start`, also for several agents on loopback.

Ray takes the machine's own address where 127.0.0.1 was given, and other machines would reach it,
unless a variable says that clusters are not supported here; but then its command refuses to start
a second agent. So the command alone is told that they are supported.
"""

from __future__ import annotations

import signal
from typing import Any

from ray._private import ray_constants
from ray.scripts import scripts

from pie_py.config.child import exit_with_parent


class _Constants:
    """Ray's constants, but for one."""

    ENABLE_RAY_CLUSTER = True

    def __getattr__(self, name: str) -> Any:
        return getattr(ray_constants, name)


if __name__ == "__main__":
    exit_with_parent(number=signal.SIGTERM)  # at which it ends Ray's processes
    commands: Any = scripts
    commands.ray_constants = _Constants()
    commands.main()
