"""A server that is attacked: its process can be looked at and killed, and its log read."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from pie_py.client.sync import Client
from pie_py.config.server import ServerConfig
from pie_py.config.server_process import ServerProcess


class Server(ServerProcess):
    """A running server.

    Attributes:
        endpoint: where it serves.
        process: the control process.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        """Takes a short folder, for its data and log, and fields of `ServerConfig`."""
        settings.setdefault("endpoint", f"ipc://{folder}/door")
        settings.setdefault("worker_threads", 1)
        settings.setdefault("stop_seconds", 0)
        self._log = Path(tempfile.mkstemp(suffix=".log", dir=folder)[1])
        super().__init__(ServerConfig(data_folder=folder / "data", **settings), self._log)
        self.process = psutil.Process(self.pid)
        self.endpoint = self.wait_ready()

    def client(self, **options: Any) -> Client:
        """A client, to be used in a `with`."""
        return Client(self.endpoint, **options)

    @property
    def ended(self) -> bool:
        """Whether it has."""
        with suppress(psutil.NoSuchProcess):
            return bool(self.process.status() == psutil.STATUS_ZOMBIE)
        return True

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text(errors="replace")

    def __enter__(self) -> Server:
        return self
