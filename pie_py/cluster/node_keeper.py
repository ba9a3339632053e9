"""Keeps one node alive: a control process, and another one under a new number when it has ended.

Its actor runs it; nothing here knows of Ray.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from pie_py.cluster.asking import Directory, DirectoryAway, DirectoryRefuses
from pie_py.cluster.kept import Child
from pie_py.cluster.settings import Machine, Token, member_keys_file
from pie_py.config.cluster import MemberConfig, read_member_pair
from pie_py.config.server import ServerConfig
from pie_py.wire.cluster import Begin, Begun

log = logging.getLogger("pie.node")

START_SECONDS = 600.0  # to load a model
STILL_SECONDS = 10.0  # that a control loop may say nothing before its process is ended
FIRST_PAUSE, MOST_PAUSE = 0.1, 30.0  # before another life; twice as long each time
WELL_SECONDS = 10.0  # a life that lasted so long was well
BEGIN_SECONDS = 5.0  # to wait for a life's number, before it is asked for again
MOST_REASON = 250  # characters


class NodeKeeper:
    """The lives of one node."""

    def __init__(self, node: str, folder: Path) -> None:
        """Nothing runs before `run`.

        Args:
            node: its name.
            folder: of the machine.
        """
        self.life = ""
        self.pid: int | None = None  # of the control process
        self._node = node
        self._folder = folder
        self._token = Token.read(folder / "token.json")
        self._machine = Machine.model_validate_json((folder / "machine.json").read_text())
        self._keys = member_keys_file(folder, self._token)
        self._stop = threading.Event()

    def run(self) -> str:
        """Keeps the node until it is drained, or `stop`; returns why it has ended."""
        reason, pause = "", FIRST_PAUSE
        pair = None if self._keys is None else read_member_pair(self._keys)
        with Directory(self._token.directory, pair) as directory:
            while not self._stop.is_set():
                try:
                    incarnation = self._begin(directory, reason)
                except DirectoryRefuses as error:
                    if error.code == "drained":
                        return str(error)
                    log.error("no number for a life of %s: %s", self._node, error)
                    self._stop.wait(1.0)
                    continue
                if incarnation is None:
                    continue
                began = time.monotonic()
                self.life = f"{self._node}.{incarnation}"
                reason, drained = self._live(incarnation)
                log.warning("%s has ended: %s", self.life, reason)
                if drained:
                    return reason
                if time.monotonic() - began > WELL_SECONDS:
                    pause = FIRST_PAUSE
                self._stop.wait(pause)
                pause = min(2 * pause, MOST_PAUSE)
        return "stopped"

    def stop(self) -> None:
        """Ends the node, and starts no other life of it."""
        self._stop.set()

    def _begin(self, directory: Directory, reason: str) -> int | None:
        question = Begin(directory.next_number, self._node, reason[:MOST_REASON])
        try:
            answer = directory.ask(question, BEGIN_SECONDS)
        except DirectoryAway as error:
            log.warning("%s", error)
            return None
        assert isinstance(answer, Begun)
        return answer.incarnation

    def _live(self, incarnation: int) -> tuple[str, bool]:
        """One life. Returns why it has ended, and whether it was drained."""
        log_file = self._folder / "logs" / f"{self._node}.log"
        try:
            log_file.parent.mkdir(parents=True, exist_ok=True)
            child = Child("pie_control", self._config(incarnation).model_dump_json(), log_file)
        except OSError as error:
            return f"its control process cannot be started: {error}", False
        self.pid = child.process.pid
        try:
            return self._listen(child)
        finally:
            child.stop() if self._stop.is_set() else child.kill()
            self.pid = None

    def _listen(self, child: Child) -> tuple[str, bool]:
        patience, heard, left = START_SECONDS, time.monotonic(), ""
        while not self._stop.is_set():
            try:
                said = child.next_line(0.25)
            except EOFError:
                return left or f"its control process has ended with {child.kill()}", left != ""
            now = time.monotonic()
            if said is None:
                if now - heard > patience:
                    return f"its control process said nothing for {patience:g} s", False
                continue
            heard = now
            if "error" in said:
                return str(said["error"]), False
            if "left" in said:
                if not said.get("drained"):
                    return str(said["left"]), False
                left = str(said["left"])
            if "alive" in said:
                patience = STILL_SECONDS
        return "stopped", False

    def _config(self, incarnation: int) -> ServerConfig:
        token, machine = self._token, self._machine
        member = MemberConfig(
            directory=token.directory,
            gateway=token.gateway,
            gateway_key=token.gateway_key,
            node=self._node,
            incarnation=incarnation,
            keys=self._keys,
            shares_data=machine.shares_data,
        )
        config = ServerConfig.model_validate(token.server)
        changes = {"endpoint": f"tcp://{machine.host}:*", "cluster": member}
        if not machine.shares_data:
            changes["data_folder"] = self._folder / "data"
        return config.model_copy(update=changes)
