"""Real servers for tests: the control process with its worker, started as the command line does."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from pie_py.client.sync import Client
from pie_py.testing.script import replaying
from support.child_processes import ChildProcess, command_line

EMBEDDED = Path(__file__).parents[2] / "inference/pie_inference/embedded/pie-tiny"
# Of a server whose programs ask no model: its worker loads none.
NO_MODEL: dict[str, Any] = {
    "models": [{"source": str(EMBEDDED)}],
    "worker_module": "benchmarks.instant_worker",
}


class Server(ChildProcess):
    """A running server on an ipc endpoint in a folder of its own."""

    def __init__(self, folder: Path | None = None, **settings: Any) -> None:
        """Takes a short folder for its data, else it has its own, and fields of `ServerConfig`; and
        `replays`, the lines that its model says.
        """
        self.folder = folder = self._folder(folder)
        if "replays" in settings:
            settings = {**replaying(folder, settings.pop("replays")), **settings}
        settings.setdefault("endpoint", f"ipc://{folder}/door")
        settings.setdefault("data_folder", str(folder / "data"))
        settings.setdefault("worker_threads", 1)
        settings.setdefault("stop_seconds", 0)  # tests leave instances behind
        cache = os.environ.get("PIE_PY_CACHE_FOLDER")
        if cache is not None:
            settings.setdefault("cache_folder", cache)
        super().__init__("pie_control", settings, folder / "stderr")

    def client(self, **options: Any) -> Client:
        """A sync client, to be used in a `with`."""
        return Client(self.endpoint, **options)

    @property
    def worker(self) -> psutil.Process:
        """The inference worker's process."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "pie_inference" in command_line(child):
                return child
        raise AssertionError("no worker runs")

    @property
    def rss(self) -> int:
        """Resident memory of the control process, bytes."""
        size: int = psutil.Process(self.process.pid).memory_info().rss
        return size

    def ask_to_stop(self) -> None:
        """Asks as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits until something holds. Fails after so many seconds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
