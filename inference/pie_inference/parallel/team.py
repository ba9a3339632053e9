"""The processes of the other ranks, started and told by the first: it alone talks to the control
process.

What it is sent it passes on, before it acts on it: all ranks run the same plans in the same order,
and get the same tokens. A rank that ends takes the first with it, which the control process sees as
a worker lost.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import structlog
import torch
import zmq

from pie_inference.errors import LoadError
from pie_inference.parallel.ranks import Ranks

log = structlog.get_logger("pie.worker")

LINGER_MS = 2000  # for the last message
WATCH_SECONDS = 0.2  # how often to look whether the others live


class Team:
    """The other ranks, as the first one sees them."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], size: int, config: str) -> None:
        """Starts them; `config` is the worker's own, as JSON."""
        self._folder = Path(tempfile.mkdtemp(prefix="pie-"))
        self._sockets: list[zmq.Socket[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._over = False
        for rank in range(1, size):
            socket = context.socket(zmq.PUSH)
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, LINGER_MS)
            socket.bind(ear(self._folder, rank))
            self._sockets.append(socket)
            command = [sys.executable, "-m", "pie_inference", "--follow", str(self._folder)]
            arguments = ["--rank", str(rank), "--config", config]
            self._processes.append(subprocess.Popen([*command, *arguments], stdout=sys.stderr))
        threading.Thread(target=self._watch, name="team-watch", daemon=True).start()

    @property
    def meeting(self) -> Path:
        """Where all ranks meet."""
        return meeting(self._folder)

    def pass_on(self, frame: bytes) -> None:
        """Tells the others what this one has been told."""
        for socket in self._sockets:
            socket.send(frame)

    def close(self) -> None:
        """Ends the others."""
        self._over = True
        for socket in self._sockets:
            socket.close()
        for process in self._processes:
            try:
                process.wait(timeout=2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        while not self._over:
            for rank, process in enumerate(self._processes, 1):
                code = process.poll()
                if code and not self._over:  # without failure it ends only when told to
                    log.error("a rank has ended, so the worker does", rank=rank, status=code)
                    os._exit(1)
            time.sleep(WATCH_SECONDS)


def ear(folder: Path, rank: int) -> str:
    """Where a rank listens to the first one."""
    return f"ipc://{folder}/rank-{rank}"


def meeting(folder: Path) -> Path:
    """Where all ranks meet."""
    return folder / "meeting"


def join(rank: int, size: int, place: Path, on_cpu: bool) -> Ranks:
    """Waits for the other ranks."""
    if on_cpu:
        return Ranks.join(rank, size, place, torch.device("cpu"))
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    return Ranks.join(rank, size, place, device)


def check_devices(size: int, on_cpu: bool) -> None:
    """Raises `LoadError` if there are fewer GPUs than ranks."""
    if not on_cpu and torch.cuda.device_count() < size:
        raise LoadError(
            f"tensor_parallel_size: {size} ranks need as many GPUs, and {torch.cuda.device_count()}"
            " are visible; set it to that, or device to cpu"
        )
