"""A process of the server, started as the command line does."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

START_SECONDS = 180.0
STOP_SECONDS = 20.0


class ChildProcess:
    """A process that has told in its first line that it is ready, or why it cannot serve."""

    _own: tempfile.TemporaryDirectory[str] | None = None  # which goes with it

    def __init__(self, module: str, config: dict[str, Any], log: Path) -> None:
        """Takes the module, fields of `ServerConfig`, and a file for its log."""
        self._module = module
        self._log = log
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--with-parent", "--config", json.dumps(config)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        told = self._first_line()
        self.error: str | None = told.get("error")
        self.endpoint: str = told.get("endpoint", config["endpoint"])

    def _folder(self, given: Path | None) -> Path:
        """The one that is given, or one of its own whose path is short enough for a socket."""
        if given is not None:
            return given
        self._own = tempfile.TemporaryDirectory(prefix="pie-", ignore_cleanup_errors=True)
        return Path(self._own.name)

    def _first_line(self) -> dict[str, Any]:
        lines: queue.Queue[str] = queue.Queue()
        stdout = self.process.stdout
        assert stdout is not None
        threading.Thread(target=lambda: lines.put(stdout.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=START_SECONDS)
        except queue.Empty:
            self.process.kill()
            raise AssertionError(f"{self._module} did not start:\n{self.log}") from None
        if not line:
            raise AssertionError(f"{self._module} died:\n{self.log}")
        message: dict[str, Any] = json.loads(line)
        return message

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        """True if it runs no more."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Kills it, and waits for its end."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Has it stop, if it runs, and returns its exit status."""
        if self.process.poll() is None:
            self.ask_to_stop()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError(f"{self._module} does not stop:\n{self.log}") from None
        return self.process.returncode

    def ask_to_stop(self) -> None:
        """Closes its standard input, as the end of its parent does."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __enter__(self) -> Self:
        if self.error is not None:
            raise AssertionError(f"{self._module} did not start: {self.error}\n{self.log}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._own is not None:
            self._own.cleanup()


def name_of(process: psutil.Process) -> str:
    """A process's name; empty if it has ended."""
    try:
        name: str = process.name()
    except psutil.NoSuchProcess:
        return ""
    return name


def command_line(process: psutil.Process) -> str:
    """What a process was started with; empty if it has ended, waited for or not."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
