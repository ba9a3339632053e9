"""The other ranks of a worker, started by the first, which alone talks to the control process.

What it is sent it passes on, before it acts on it: all ranks run the same plans in the same order,
and get the same tokens. A rank that ends takes the first with it, which the control process sees as
a worker lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress

import structlog
import torch
import zmq

from pie_inference.errors import LoadError
from pie_py.config.processes import python_command
from pie_py.config.temporary import TemporaryFolder

log = structlog.get_logger("pie.worker")

LINGER_MS = 2000  # for the last message
END_SECONDS = 2.0  # for ranks to end by themselves


class Team:
    """The other ranks, as the first one sees them: processes, each with a socket."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], size: int, config: str) -> None:
        """Starts the others of so many, with the worker's configuration, as JSON."""
        self._folder = TemporaryFolder()
        self.meeting = f"{self._folder.path}/meeting"
        self._sockets: list[zmq.Socket[bytes]] = []
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._over = False
        for rank in range(1, size):
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
        threading.Thread(target=self._watch, name="team-watch", daemon=True).start()

    def pass_on(self, frame: bytes) -> None:
        """Sends the others what this one was sent."""
        for socket in self._sockets:
            with suppress(zmq.Again):  # it has ended, which is seen
                socket.send(frame, zmq.NOBLOCK)

    def close(self) -> None:
        """Ends the others: kills those that do not end by themselves."""
        self._over = True
        for socket in self._sockets:
            socket.close()
        end = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._folder.close()

    def _watch(self) -> None:
        """Without a failure the others end only at `Stop`."""
        while not self._over:
            for rank, process in self._processes.items():
                if (status := process.poll()) and not self._over:
                    reason = f"rank {rank} has ended with status {status}"
                    log.error("other ranks are lost, so the worker ends", reason=reason)
                    os._exit(1)
            time.sleep(0.2)


def check_devices(size: int, on_cpu: bool) -> None:
    """Raises `LoadError` if this machine has fewer GPUs than ranks."""
    if not on_cpu and torch.cuda.device_count() < size:
        raise LoadError(
            f"tensor_parallel_size: {size} ranks need as many GPUs, and {torch.cuda.device_count()}"
            " are visible; set it to that, or device to cpu"
        )
