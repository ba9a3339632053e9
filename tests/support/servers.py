"""Real servers for tests: the control process with its worker, started as the command line does."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from pie_py.client.sync import Client

START_SECONDS = 180.0


class Server:
    """A running server on an ipc endpoint in a folder of its own."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """Takes a short folder for its data and fields of `ServerConfig`."""
        settings.setdefault("endpoint", f"ipc://{folder}/door")
        settings.setdefault("data_folder", str(folder / "data"))
        settings.setdefault("worker_threads", 1)
        cache = os.environ.get("PIE_PY_CACHE_FOLDER")
        if cache is not None:
            settings.setdefault("cache_folder", cache)
        self.stderr_path = folder / "stderr"
        self.endpoint = settings["endpoint"]
        with self.stderr_path.open("ab") as stderr:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "pie_control",
                    "--with-parent",
                    "--config",
                    json.dumps(settings),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.first_line = self._read_first_line()
        self.error: str | None = self.first_line.get("error")
        self.endpoint = self.first_line.get("endpoint", self.endpoint)

    def _read_first_line(self) -> dict[str, Any]:
        lines: queue.Queue[str] = queue.Queue()
        stdout = self.process.stdout
        assert stdout is not None
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=START_SECONDS)
        except queue.Empty:
            self.process.kill()
            raise AssertionError(f"the server did not start:\n{self.stderr}") from None
        if not line:
            raise AssertionError(f"the server died:\n{self.stderr}")
        message: dict[str, Any] = json.loads(line)
        return message

    @property
    def stderr(self) -> str:
        """What it has logged so far."""
        return self.stderr_path.read_text(errors="replace")

    def client(self, **options: Any) -> Client:
        """A sync client, to be used in a `with`."""
        return Client(self.endpoint, **options)

    @property
    def worker(self) -> psutil.Process:
        """The inference worker's process."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "pie_inference" in " ".join(child.cmdline()):
                return child
        raise AssertionError("no worker runs")

    @property
    def rss(self) -> int:
        """Resident memory of the control process, bytes."""
        size: int = psutil.Process(self.process.pid).memory_info().rss
        return size

    def stop(self) -> int:
        """Stops the server as Ctrl-C does and returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError(f"the server does not stop:\n{self.stderr}") from None
        return self.process.returncode

    def __enter__(self) -> Server:
        if self.error is not None:
            raise AssertionError(f"the server did not start: {self.error}\n{self.stderr}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
