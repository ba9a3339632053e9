"""Keeps the host of a node's ranks on a machine where its first rank is not.

Its actor runs it; nothing here knows of Ray.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

from pie_cluster.machines.settings import Machine, Token, member_keys_file, without_ray
from pie_py.config.processes import Child, Supervisor

log = logging.getLogger("pie.ranks")


class RankKeeper:
    """A host of ranks, and another one at its address when it has ended."""

    def __init__(self, node: str, folder: Path) -> None:
        """Starts the first one.

        Args:
            node: whose ranks they are.
            folder: of the machine.
        """
        self.endpoint = ""  # where the host listens; empty until it does
        self._node = node
        self._folder = folder
        self._token = Token.read(folder / "token.json")
        self._machine = Machine.read(folder)
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
