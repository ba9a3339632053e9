"""Processes of ranks on this machine, with sockets for what the first rank passes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import zmq

from pie_py.config.processes import python_command
from pie_py.config.temporary import TemporaryFolder

LINGER_MS = 2000  # for the last message


class FailedRank(NamedTuple):
    """A rank that has failed."""

    rank: int
    status: int


class RankProcesses:
    """Some ranks of a worker, as processes of this machine."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        ranks: Sequence[int],
        config: str,
        meeting: str | None = None,
    ) -> None:
        """Starts them with the worker's configuration, as JSON; by default they meet in a file."""
        self._folder = TemporaryFolder()
        self.meeting = meeting or f"file://{self._folder.path}/meeting"
        self._sockets: list[zmq.Socket[bytes]] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in ranks:
            endpoint = f"ipc://{self._folder.path}/rank-{rank}"
            socket = context.socket(zmq.PUSH)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, LINGER_MS)
            socket.bind(endpoint)
            self._sockets.append(socket)
            command = python_command("-m", "pie_inference", "--follow", endpoint)
            command += ["--meeting", self.meeting, "--rank", str(rank), "--config", config]
            self._processes[rank] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=sys.stderr
            )

    def pass_on(self, frame: bytes) -> None:
        """Sends them what the first rank was sent."""
        for socket in self._sockets:
            with suppress(zmq.Again):  # it has ended: see `failed`
                socket.send(frame, zmq.NOBLOCK)

    def failed(self) -> FailedRank | None:
        """One that has ended with a failure; without one they end only at `Stop`."""
        for rank, process in self._processes.items():
            if code := process.poll():
                return FailedRank(rank, code)
        return None

    def close(self, patience: float = 2.0) -> None:
        """Ends them: kills those that have not ended by themselves after `patience` seconds."""
        for socket in self._sockets:
            socket.close()
        end = time.monotonic() + patience
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.close()
