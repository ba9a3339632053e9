"""Keeps the host of a node's ranks on a machine where its first rank is not.

Its actor runs it; nothing here knows of Ray.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from typing import Any

from pie_cluster.machines.kept import Child
from pie_cluster.machines.settings import Machine, Token, member_keys_file

log = logging.getLogger("pie.ranks")

PAUSE = 0.5  # before another host, when one has ended
LOOK_SECONDS = 1.0


class RankKeeper:
    """A host of ranks, and another one at its address when it has ended."""

    def __init__(self, node: str, folder: Path) -> None:
        """Nothing runs before `run`.

        Args:
            node: whose ranks they are.
            folder: of the machine.
        """
        self.endpoint = ""  # where the host listens; empty until it does
        self._node = node
        self._folder = folder
        self._token = Token.read(folder / "token.json")
        self._machine = Machine.model_validate_json((folder / "machine.json").read_text())

    def run(self) -> None:
        """Keeps a host until the process ends."""
        while True:
            try:
                self._keep()
            except OSError as error:
                log.error("no host of ranks of %s can be started: %s", self._node, error)
            time.sleep(PAUSE)

    def _keep(self) -> None:
        log_file = self._folder / "logs" / f"{self._node}-ranks.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        child = Child("pie_cluster.ranks.host", self._config(), log_file)
        try:
            while True:
                said = child.next_line(LOOK_SECONDS) or {}
                if "endpoint" in said:
                    self.endpoint = said["endpoint"]
                elif "error" in said:
                    log.error("%s", said["error"])
        except EOFError:
            child.kill()

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
