"""Keeps one node alive: a control process, and another one under a new number when it has ended.

An actor runs it; nothing here knows of Ray.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from pathlib import Path

from pie_cluster.config import MemberConfig
from pie_cluster.directory.asking import DirectoryAway, DirectoryRefuses
from pie_cluster.machines.settings import (
    TOKEN_FILE,
    directory_of,
    read_folder,
    without_ray,
)
from pie_py.config.child import LEAVE_SECONDS
from pie_py.config.processes import LOAD_SECONDS, Backoff, Child
from pie_py.config.server import ServerConfig

log = logging.getLogger("pie.node")

STILL_SECONDS = 10.0  # that a control loop may say nothing before its process is ended
FIRST_PAUSE = 0.1
LOOK_SECONDS = 0.25
MOST_REASON = 250  # characters
END_SECONDS = 2.0  # for a process to end that has closed its standard output


class NodeKeeper:
    """The lives of one node."""

    def __init__(
        self,
        node: str,
        folder: Path,
        is_placed: Callable[[], bool],
        reason: str = "",
    ) -> None:
        """Nothing runs before `run`. The reason is why another keeper of the node has ended, if one
        has. No life begins while the node is not `is_placed` here: it has one elsewhere.
        """
        self.left = False
        self._child: Child | None = None
        self._is_placed = is_placed
        self._reason = reason
        self._node = node
        self._folder = folder
        self._token, self._machine = read_folder(folder)

    def run(self) -> str:
        """Keeps the node until it is drained or leaves; returns why it has ended."""
        reason, backoff = self._reason, Backoff(first=FIRST_PAUSE)
        directory = directory_of(self._token)
        while True:
            if not self._is_placed():
                time.sleep(1.0)
                continue
            try:
                incarnation = directory.begin(self._node, reason[:MOST_REASON])
            except DirectoryAway as error:
                log.warning("%s", error)
                continue
            except DirectoryRefuses as error:
                if error.code == "drained":
                    return str(error)
                log.error("no number for a life of %s: %s", self._node, error)
                time.sleep(1.0)
                continue
            backoff.start()
            reason = self._live(incarnation)
            if self.left:
                return reason
            log.warning("%s.%s has ended: %s", self._node, incarnation, reason)
            time.sleep(backoff.pause())

    def leave(self) -> None:
        """Has the node end in order, with its temporary files; no other life follows."""
        self.left = True
        if self._child is not None:
            self._child.stop(LEAVE_SECONDS)

    def _live(self, incarnation: int) -> str:
        """One life. Returns why it has ended; whether another one follows the directory tells."""
        log_file = self._folder / "logs" / f"{self._node}.log"
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            config = self._config(incarnation)
            options = ("--with-parent", "--config", config.model_dump_json())
            child = self._child = Child("pie_control", *options, log=log_file, env=without_ray())
        except OSError as error:
            return f"its control process cannot be started: {error}"
        with child:
            try:
                return self._listen(child)
            finally:
                child.kill()

    def _listen(self, child: Child) -> str:
        patience, heard, left = LOAD_SECONDS, time.monotonic(), ""
        while True:
            try:
                said = child.next_line(LOOK_SECONDS)
            except EOFError:
                return left or f"its control process {_how_ended(child)}"
            now = time.monotonic()
            if said is None:
                if now - heard > patience:
                    return f"its control process said nothing for {patience:g} s"
                continue
            heard = now
            if "error" in said:
                return str(said["error"])
            if "left" in said:
                if not said.get("drained"):
                    return str(said["left"])
                left = str(said["left"])
            if "alive" in said:
                patience = STILL_SECONDS

    def _config(self, incarnation: int) -> ServerConfig:
        token, machine = self._token, self._machine
        member = MemberConfig(
            gateway=token.gateway,
            gateway_key=token.gateway_key,
            node=self._node,
            incarnation=incarnation,
            token=self._folder / TOKEN_FILE if token.is_encrypted else None,
            shares_data=machine.is_head,
        )
        config = ServerConfig.model_validate(token.server)
        changes: dict[str, object] = {
            "endpoint": f"tcp://{machine.host}:*",
            "extension": member.extension(),
        }
        if not machine.is_head:
            changes["data_folder"] = self._folder / "data"
        return config.model_copy(update=changes)


def _how_ended(child: Child) -> str:
    """How a process has ended that said nothing of it, and has closed its standard output; it is
    killed if it still runs.
    """
    status = child.stop(END_SECONDS)
    if status >= 0:
        return f"has ended with status {status}"
    return f"was killed by {signal.Signals(-status).name}"
