"""The process of a worker: what starts it needs little of the control process, so that the first
one loads its libraries while this process does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pie_py.config.processes import python_command
from pie_py.config.temporary import TemporaryFolder

# Fields of a server's configuration that its worker gets, see `WorkerConfig`.
_FIELDS = ("models", "worker_threads", "tensor_parallel_size", "observer", "log")


class WorkerProcess:
    """A running worker, and the endpoint that it connects to."""

    def __init__(self, folder: TemporaryFolder, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._folder = folder

    @property
    def endpoint(self) -> str:
        """Of the control process, for this worker alone."""
        return _endpoint(self._folder.path)

    async def wait(self) -> int:
        """Waits for its end; its exit status."""
        from trio.to_thread import run_sync  # there is no event loop when the first one is started

        return await run_sync(self.process.wait, abandon_on_cancel=True)

    def close(self) -> None:
        """Ends it if it runs, and removes its socket."""
        self.process.kill()  # does nothing to one that has ended
        self._folder.close()


def start_worker(config: Mapping[str, Any]) -> WorkerProcess | None:
    """Starts a worker of a server. Raises `OSError` if there is no room for a process.

    The configuration, as JSON has it, need not have been checked: the worker checks its part. If it
    lacks something of that, or all models are loaded by request, no worker is started.
    """
    if not config.keys() >= {*_FIELDS, "worker_module"}:
        return None
    if not (settings := _settings(config))["models"]:
        return None
    folder = TemporaryFolder()
    try:
        process = subprocess.Popen(
            python_command(
                *("-m", config["worker_module"]),
                *("--connect", _endpoint(folder.path)),
                *("--config", json.dumps(settings)),
            ),
            stdin=subprocess.PIPE,  # ends with this process, and the worker with it
            stdout=sys.stderr,  # standard output goes to the parent
        )
    except BaseException:
        folder.close()
        raise
    return WorkerProcess(folder, process)


def _endpoint(folder: Path) -> str:
    return f"ipc://{folder}/worker"


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name.removeprefix("worker_"): config[name] for name in _FIELDS}
    settings["models"] = [model for model in config["models"] if not model.get("on_demand")]
    return settings
