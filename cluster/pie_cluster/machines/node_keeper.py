"""Keeps one node alive: a control process, and another one under a new number when it has ended;
and on machines where its first rank is not, the host of its ranks.

Actors run them; nothing here knows of Ray.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pie_cluster.config import FurtherRanks, MemberConfig
from pie_cluster.directory.asking import Directory, DirectoryAway, DirectoryRefuses
from pie_cluster.machines.settings import (
    directory_of,
    member_keys_file,
    read_folder,
    waiting,
    without_ray,
)
from pie_py.config.child import LEAVE_SECONDS
from pie_py.config.processes import LOAD_SECONDS, Backoff, Child, Supervisor
from pie_py.config.server import ServerConfig

log = logging.getLogger("pie.node")

STILL_SECONDS = 10.0  # that a control loop may say nothing before its process is ended
FIRST_PAUSE = 0.1
LOOK_SECONDS = 0.25
MOST_REASON = 250  # characters
END_SECONDS = 2.0  # for a process to end that has closed its standard output
COUNTS = Path("/proc/vmstat")


def no_hosts() -> tuple[str, ...]:
    """The hosts of a node whose ranks are all on its machine."""
    return ()


class NodeKeeper:
    """The lives of one node."""

    def __init__(
        self,
        node: str,
        folder: Path,
        find_hosts: Callable[[], tuple[str, ...] | None] = no_hosts,
        reason: str = "",
    ) -> None:
        """Nothing runs before `run`. The reason is why another keeper of the node has ended, if one
        has.

        `find_hosts` tells at once where the hosts are of its ranks on other machines; None if one
        is missing. A life ends with its hosts.
        """
        self.left = False
        self._child: Child | None = None
        self._find_hosts = find_hosts
        self._reason = reason
        self._node = node
        self._folder = folder
        self._token, self._machine = read_folder(folder)
        self._keys = member_keys_file(folder, self._token)

    def run(self) -> str:
        """Keeps the node until it is drained or leaves; returns why it has ended."""
        reason, backoff = self._reason, Backoff(first=FIRST_PAUSE)
        directory = directory_of(self._token)
        while True:
            # That a life has ended is told at once, whatever the next one waits for.
            hosts = self._await_hosts(0 if reason else 10.0)
            waits = waiting(self._token, self._machine) if hosts is None else ""
            try:
                incarnation = self._begin(directory, waits or reason)
            except DirectoryRefuses as error:
                if error.code == "drained":
                    return str(error)
                log.error("no number for a life of %s: %s", self._node, error)
                time.sleep(1.0)
                continue
            if incarnation is None:
                continue
            if hosts is None:  # which the directory shows from now on
                self._await_hosts(None)
                continue
            backoff.start()
            reason = self._live(incarnation, hosts)
            if self.left:
                return reason
            log.warning("%s.%s has ended: %s", self._node, incarnation, reason)
            time.sleep(backoff.pause())

    def leave(self) -> None:
        """Has the node end in order, with its temporary files; no other life follows."""
        self.left = True
        if self._child is not None:
            self._child.stop(LEAVE_SECONDS)

    def _begin(self, directory: Directory, reason: str) -> int | None:
        try:
            return directory.begin(self._node, reason[:MOST_REASON])
        except DirectoryAway as error:
            log.warning("%s", error)
            return None

    def _await_hosts(self, seconds: float | None) -> tuple[str, ...] | None:
        """Where its hosts are; None if one is missing after so long."""
        end = None if seconds is None else time.monotonic() + seconds
        while (hosts := self._find_hosts()) is None:
            if end is not None and time.monotonic() > end:
                return None
            time.sleep(LOOK_SECONDS)
        return hosts

    def _live(self, incarnation: int, hosts: tuple[str, ...]) -> str:
        """One life. Returns why it has ended; whether another one follows the directory tells."""
        log_file = self._folder / "logs" / f"{self._node}.log"
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            config = self._config(incarnation, hosts)
            options = ("--with-parent", "--config", config.model_dump_json())
            child = self._child = Child("pie_control", *options, log=log_file, env=without_ray())
        except OSError as error:
            return f"its control process cannot be started: {error}"
        with child:
            try:
                return self._listen(child, hosts)
            finally:
                child.kill()

    def _listen(self, child: Child, hosts: tuple[str, ...]) -> str:
        patience, heard, left, kills = LOAD_SECONDS, time.monotonic(), "", memory_kills()
        while True:
            if self._find_hosts() != hosts:
                return "a machine of its ranks is lost"
            try:
                said = child.next_line(LOOK_SECONDS)
            except EOFError:
                return left or f"its control process {how_ended(child, kills)}"
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

    def _config(self, incarnation: int, hosts: tuple[str, ...]) -> ServerConfig:
        token, machine = self._token, self._machine
        ranks = FurtherRanks(address=machine.host, hosts=hosts, keys=self._keys) if hosts else None
        member = MemberConfig(
            directory=token.directory,
            gateway=token.gateway,
            gateway_key=token.gateway_key,
            node=self._node,
            incarnation=incarnation,
            keys=self._keys,
            shares_data=machine.shares_data,
            ranks=ranks,
        )
        config = ServerConfig.model_validate(token.server)
        changes: dict[str, object] = {
            "endpoint": f"tcp://{machine.host}:*",
            "extension": member.extension(),
        }
        if hosts:
            changes["worker_module"] = "pie_cluster.ranks.worker"
        if not machine.shares_data:
            changes["data_folder"] = self._folder / "data"
        return config.model_copy(update=changes)


class RankKeeper:
    """A host of ranks, and another one at its address when it has ended."""

    def __init__(self, node: str, folder: Path) -> None:
        """Starts the first one, for ranks of that node."""
        self.endpoint = ""  # where the host listens; empty until it does
        self._node = node
        self._folder = folder
        self._token, self._machine = read_folder(folder)
        Supervisor("ranks", self._start, self._on_lost, attend=self._attend)

    def _start(self) -> Child:
        log_file = self._folder / "logs" / f"{self._node}-ranks.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        options = ("--with-parent", "--config", self._config())
        return Child("pie_cluster.ranks.host", *options, log=log_file, env=without_ray())

    def _attend(self, child: Child) -> None:
        with suppress(EOFError):
            while (report := child.next_line()) is not None:
                if "endpoint" in report:
                    self.endpoint = report["endpoint"]
                elif "error" in report:
                    log.error("%s", report["error"])

    def _on_lost(self, reason: str, pause: float) -> None:
        log.error("the host of ranks of %s was lost: %s", self._node, reason)

    def _config(self) -> str:
        """Of `pie_cluster.ranks.host`, as JSON."""
        keys = member_keys_file(self._folder, self._token)
        config: dict[str, Any] = {
            "endpoint": self.endpoint or f"tcp://{self._machine.host}:*",
            "address": self._machine.host,
            "folder": str(self._folder),
            "node": self._node,
            "keys": None if keys is None else str(keys),
            "log": self._token.server.get("log", {}),
        }
        return json.dumps(config, separators=(",", ":"))


def memory_kills(counts: Path = COUNTS) -> int:
    """How many processes the kernel has killed on this machine because its memory, or that of a
    container, was full; 0 if it does not tell.
    """
    with suppress(OSError, ValueError):
        for line in counts.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def how_ended(child: Child, kills: int, counts: Path = COUNTS) -> str:
    """How a process has ended that said nothing of it, and has closed its standard output; it is
    killed if it still runs. `kills` is the `memory_kills` before.
    """
    end = time.monotonic() + END_SECONDS
    while child.status is None and time.monotonic() < end:
        time.sleep(0.01)
    if child.status is None:
        child.kill()
        return "closed its standard output, and was ended"
    status = child.kill()
    if status >= 0:
        return f"has ended with status {status}"
    name = signal.Signals(-status).name
    if status == -signal.SIGKILL and memory_kills(counts) > kills:
        return f"was killed by {name}, as others or it by the kernel, whose memory was full"
    return f"was killed by {name}"
