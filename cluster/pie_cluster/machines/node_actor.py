"""Ray's actor around a node: a control process, and another one under a new number when it has
ended.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import ray

from pie_cluster.config import MemberConfig
from pie_cluster.directory.asking import DirectoryAway, DirectoryRefuses
from pie_cluster.machines.settings import (
    TOKEN_FILE,
    directory_of,
    node_names,
    read_folder,
    without_ray,
    write_names,
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
ACTOR_ENDED = "its actor has ended; the system's log and ray/session_latest/logs tell why"


class NodeActor:
    """Keeps a node until it is drained or leaves; if the actor ends, Ray starts it again."""

    def __init__(self, node: str) -> None:
        """Starts keeping; the directory tells when the node serves."""
        self._folder = Path(os.environ["PIE_PY_CLUSTER_FOLDER"])
        self._node = node
        self._token, self._machine = read_folder(self._folder)
        self._directory = directory_of(self._token)
        self._child: Child | None = None
        self._leaving = False
        context = ray.get_runtime_context()
        self._here = context.get_node_id()
        reason = ACTOR_ENDED if context.was_current_actor_reconstructed else ""
        threading.Thread(target=self._keep, args=(reason,), daemon=True).start()

    def leave(self) -> None:
        """Ends the node in order, so that this can be killed."""
        self._leaving = True
        if self._child is not None:
            self._child.stop(LEAVE_SECONDS)

    def _keep(self, reason: str) -> None:
        backoff = Backoff(first=FIRST_PAUSE)
        while (incarnation := self._begun(reason)) is not None:
            backoff.start()
            reason = self._live(incarnation)
            if self._leaving:
                return
            log.warning("%s.%s has ended: %s", self._node, incarnation, reason)
            time.sleep(backoff.pause())
        # It is drained: the actor goes, and must not be started again, by Ray or by its machine.
        names = [name for name in node_names(self._folder) or () if name != self._node]
        while True:
            try:
                write_names(self._folder, names)
                break
            except OSError as error:  # a full disk
                log.error("a drained node cannot be noted: %s", error)
                time.sleep(1.0)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

    def _begun(self, reason: str) -> int | None:
        """The number of a new life; the reason is why the one before has ended. None if the node is
        drained.
        """
        while True:
            # A machine that was cut off is dead to Ray, which starts the node anew and has this
            # process end. Waits for Ray's head.
            if self._here in alive():
                try:
                    why = reason[:MOST_REASON]
                    return int(self._directory.ask("begin", node=self._node, reason=why))
                except DirectoryAway as error:
                    log.warning("%s", error)
                    continue
                except DirectoryRefuses as error:
                    if error.code == "drained":
                        return None
                    log.error("no number for a life of %s: %s", self._node, error)
            time.sleep(1.0)

    def _live(self, incarnation: int) -> str:
        """One life. Returns why it has ended; whether another life follows the directory
        tells.
        """
        log_file = self._folder / "logs" / f"{self._node}.log"
        options = ("--with-parent", "--config", self._config(incarnation).model_dump_json())
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
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
        changes: dict[str, object] = {
            "endpoint": f"tcp://{machine.host}:*",
            "extension": member.extension(),
        }
        if not machine.is_head:
            changes["data_folder"] = self._folder / "data"
        return ServerConfig.model_validate(token.server).model_copy(update=changes)


def _how_ended(child: Child) -> str:
    """How a process has ended that said nothing of it, and has closed its standard output; it is
    killed if it still runs.
    """
    status = child.stop(END_SECONDS)
    if status >= 0:
        return f"has ended with status {status}"
    return f"was killed by {signal.Signals(-status).name}"


def alive() -> dict[str, Any]:
    """Ray's facts of the machines that it takes for alive, by its names of them."""
    machines: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return {each["NodeID"]: each for each in machines if each["Alive"]}
