"""The process of a worker: what starts it needs little of the control process, so that the first
one loads its libraries while this process does.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import trio

from pie_py.config.processes import python_command
from pie_py.config.server import ServerConfig


class WorkerProcess:
    """A running worker, and the endpoint that it connects to."""

    def __init__(self, folder: Path, process: trio.Process) -> None:
        """Takes the process, and the folder of its socket."""
        self.process = process
        self._folder = folder

    @property
    def endpoint(self) -> str:
        """Of the control process, for this worker alone."""
        return _endpoint(self._folder)

    def close(self) -> None:
        """Ends it if it runs, and removes its socket."""
        self.process.kill()  # does nothing to one that has ended
        shutil.rmtree(self._folder, ignore_errors=True)


async def start_worker(config: ServerConfig) -> WorkerProcess:
    """Starts a worker of a server. Raises `OSError` if there is no room for a process."""
    folder = Path(tempfile.mkdtemp(prefix="pie-"))
    try:
        process = await trio.lowlevel.open_process(
            python_command(
                *("-m", config.worker_module),
                *("--connect", _endpoint(folder)),
                *("--config", json.dumps(_settings(config))),
            ),
            stdin=subprocess.PIPE,  # ends with this process, and the worker with it
            stdout=sys.stderr,  # standard output goes to the parent
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return WorkerProcess(folder, process)


def _endpoint(folder: Path) -> str:
    return f"ipc://{folder}/worker"


def _settings(config: ServerConfig) -> dict[str, object]:
    """What a worker is told, see its `WorkerConfig`."""
    extension, observer = config.extension, config.observer
    return {
        "models": [model.model_dump(mode="json") for model in config.models],
        "threads": config.worker_threads,
        "tensor_parallel_size": config.tensor_parallel_size,
        "extension": {} if extension is None else extension.settings,
        "observer": None if observer is None else observer.model_dump(mode="json"),
        "log": config.log.model_dump(),
    }
