"""A worker's process on a socket."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import zmq

from pie_py.wire.messages import decode, encode
from pie_py.wire.plan import BatchResult, Located, Message, Plan, PlanResult, Stop

SECONDS = 100


class Worker:
    """The control process's end of a worker, to be used in a `with`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pie-")  # short: a socket's path is
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVTIMEO, SECONDS * 1000)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._endpoint = f"ipc://{self._folder.name}/worker"
        self._socket.bind(self._endpoint)
        self._started: list[subprocess.Popen[bytes]] = []
        self.first: Message | None = None  # that it has said

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            process.kill()
            process.wait()
        self._socket.close()
        self._context.term()
        self._folder.cleanup()

    def command(self, *sources: Path, ranks: int = 1, **config: Any) -> list[str]:
        """What starts it with small models."""
        size = {"kv_pages": 64, "embeds": 256}
        options = {
            "models": [{"source": str(source), **size, **config} for source in sources],
            "threads": 1,
            "tensor_parallel_size": ranks,
        }
        return [
            *(sys.executable, "-m", "pie_inference"),
            *("--connect", self._endpoint, "--config", json.dumps(options)),
        ]

    def start(self, *sources: Path, ranks: int = 1, **config: Any) -> Message:
        """Starts it; returns the first that it says."""
        command = self.command(*sources, ranks=ranks, **config)
        self._started.append(subprocess.Popen(command, stdin=subprocess.PIPE))
        self.first = self.receive()
        return self.first

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The one that was started."""
        return self._started[0]

    def send(self, message: Message) -> None:
        self._socket.send(encode(message))

    def receive(self) -> Message:
        """The next message but those of where a model's files are."""
        while True:
            frame = self._socket.recv()
            assert not self._socket.rcvmore  # who dies between two frames would take it along
            if not isinstance(message := decode(frame), Located):
                return message

    def run(self, plan: Plan) -> list[BatchResult]:
        """All results of a plan, one a batch."""
        self.send(plan)
        results: list[BatchResult] = []
        while True:
            part = self.receive()
            assert isinstance(part, PlanResult)
            assert (part.id, part.model, part.first) == (plan.id, plan.model, len(results))
            results += part.results
            if part.last:
                assert len(results) == len(plan.batches)
                return results

    def stop(self) -> int:
        """Its status, when it was told to end."""
        self.send(Stop())
        return self.process.wait(timeout=SECONDS)
