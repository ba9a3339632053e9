"""Users' keys on a machine that serves HTTP, as the head has them: public ones, in a folder of the
same form, where an HTTP gateway looks them up.
"""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

from pie_cluster.directory.asking import DirectoryAway, DirectoryRefuses
from pie_cluster.machines.settings import Token, directory_of, write_private
from pie_py.config.keys import KeyStore

log = logging.getLogger("pie.machine")

ASK_SECONDS = 1.0  # between two questions


class CopiedUsers:
    """The copy, which follows what is added and removed at the head."""

    def __init__(self, token: Token, data_folder: Path) -> None:
        """Copies nothing yet."""
        self.known = False
        self._directory = directory_of(token)
        self._server = token.gateway_key
        self._folder = data_folder
        self._changes = -1

    def follow(self) -> None:
        """Asks again and again, without end."""
        while True:
            try:
                self._look()
            except (DirectoryAway, DirectoryRefuses, OSError) as error:  # what is known counts
                log.warning("the users' keys are not copied: %s", error)
            time.sleep(ASK_SECONDS)

    def _look(self) -> None:
        told = self._directory.ask("users", changes=self._changes)
        if told is None:
            return
        # Of the server's pair clients need the public half alone.
        server = {"public": self._server, "secret": ""}
        write_private(self._folder / "keys/server.json", json.dumps(server))
        KeyStore(self._folder).become(told["users"])
        self._changes, self.known = told["changes"], True
