"""The other ranks of a worker, started by the first, which alone talks to the control process.

What it is sent it passes on, before it acts on it: all ranks run the same plans in the same order,
and get the same tokens. A rank that ends takes the first with it, which the control process sees as
a worker lost.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Protocol

import structlog
import torch
import zmq

from pie_inference.errors import LoadError
from pie_inference.parallel.processes import RankProcesses
from pie_inference.parallel.ranks import Meeting

log = structlog.get_logger("pie.worker")


class RemoteRanks(Protocol):
    """Ranks of another machine."""

    def pass_on(self, frame: bytes) -> None:
        """Sends them what the first rank was sent."""

    def failure(self) -> str | None:
        """Why the worker has to end; None while all is well."""

    def close(self) -> None:
        """Has them end."""


class Team:
    """The other ranks, as the first one sees them."""

    def __init__(
        self, here: RankProcesses, meeting: Meeting, remote: Sequence[RemoteRanks] = ()
    ) -> None:
        """Takes the others, started, and where all meet."""
        self._over = False
        self._here = here
        self._remote = remote
        self.meeting = meeting
        threading.Thread(target=self._watch, name="team-watch", daemon=True).start()

    def pass_on(self, frame: bytes) -> None:
        """Sends the others what this one was sent."""
        for remote in self._remote:
            remote.pass_on(frame)
        self._here.pass_on(frame)

    def close(self) -> None:
        """Ends the others."""
        self._over = True
        for remote in self._remote:
            remote.close()
        self._here.close()

    def _watch(self) -> None:
        while not self._over:
            if (reason := self._failure()) is not None and not self._over:
                log.error("other ranks are lost, so the worker ends", reason=reason)
                os._exit(1)
            time.sleep(0.2)

    def _failure(self) -> str | None:
        if (ended := self._here.failed()) is not None:
            return f"rank {ended.rank} has ended with status {ended.status}"
        reasons = (remote.failure() for remote in self._remote)
        return next((reason for reason in reasons if reason is not None), None)


def start_team(context: zmq.Context[zmq.Socket[bytes]], size: int, config: str) -> Team:
    """Starts the other ranks of so many here, with the worker's configuration, as JSON."""
    here = RankProcesses(context, range(1, size), config)
    return Team(here, Meeting(here.meeting))


def check_devices(each: int, on_cpu: bool) -> None:
    """Raises `LoadError` if this machine has fewer GPUs than ranks."""
    if not on_cpu and torch.cuda.device_count() < each:
        raise LoadError(
            f"tensor_parallel_size: {each} ranks need as many GPUs, and {torch.cuda.device_count()}"
            " are visible; set it to that, or device to cpu"
        )
