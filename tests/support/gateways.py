"""A real server with its HTTP gateway, started as the command line does."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx2

from support.servers import Server

START_SECONDS = 60.0


class Gateway:
    """A gateway process on a free port of loopback, before a server."""

    def __init__(self, server: Server, folder: Path, **settings: Any) -> None:
        """Takes a running server, a folder for its log and fields of `GatewayConfig`."""
        settings.setdefault("http", "127.0.0.1:0")
        config = {
            "endpoint": server.endpoint,
            "data_folder": str(folder / "data"),
            "gateway": settings,
        }
        self._log = folder / "gateway"
        command = [sys.executable, "-m", "pie_gateway", "--with-parent"]
        with self._log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [*command, "--config", json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        told = self._first_line()
        self.error: str | None = told.get("error")
        self.url: str = told.get("endpoint", "")

    def _first_line(self) -> dict[str, Any]:
        lines: queue.Queue[str] = queue.Queue()
        stdout = self.process.stdout
        assert stdout is not None
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        line = lines.get(timeout=START_SECONDS)
        if not line:
            raise AssertionError(f"the gateway died:\n{self.log}")
        message: dict[str, Any] = json.loads(line)
        return message

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text(errors="replace")

    def http(self, **options: Any) -> httpx2.Client:
        """A plain client of HTTP, to be used in a `with`."""
        return httpx2.Client(base_url=self.url, timeout=60, **options)

    def stop(self) -> int:
        """Closes its standard input, as the end of its parent does; returns its exit status."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(20)

    def __enter__(self) -> Gateway:
        if self.error is not None:
            raise AssertionError(f"the gateway did not start: {self.error}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
