"""A child process that tells of itself by lines on its standard output."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

from pie_py.config.processes import python_command

STOP_SECONDS = 10.0
PR_SET_PDEATHSIG = 1  # of prctl(2)
MOST_LINE = 1 << 20


class Child:
    """A module of ours as a child, which ends with this process."""

    def __init__(self, module: str, config: str, log: Path) -> None:
        """Starts it.

        Args:
            module: run with `--with-parent --config CONFIG`.
            config: JSON.
            log: gets its standard error.
        """
        command = python_command("-m", module, "--with-parent", "--config", config)
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells the child that this process has gone
                stdout=subprocess.PIPE,
                stderr=stderr,
                start_new_session=True,
                env=environment(),
            )
        assert self.process.stdout is not None
        self._stdout = self.process.stdout.fileno()
        self._buffer = b""

    def next_line(self, seconds: float) -> dict[str, Any] | None:
        """What it says next; None if it says nothing for so long, or has ended.

        Raises:
            EOFError: if it has closed its standard output.
        """
        while b"\n" not in self._buffer:
            if not select.select([self._stdout], [], [], seconds)[0]:
                return None
            part = os.read(self._stdout, 65536)
            if not part or len(self._buffer) > MOST_LINE:
                raise EOFError
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            said: Any = json.loads(line)
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def kill(self) -> int:
        """Ends it at once, if it has not ended; returns its status."""
        self.process.kill()
        return self._reap()

    def stop(self) -> int:
        """Has it end in order, and ends it if that takes too long."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
        return self._reap()

    def _reap(self) -> int:
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return status


def environment() -> dict[str, str]:
    """This process's, without what Ray adds for processes of its own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}


def end_with_parent() -> None:
    """For a new process, before it becomes its program: the kernel ends it with its parent."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
