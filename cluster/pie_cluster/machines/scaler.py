"""`python -m pie_cluster.machines.scaler FOLDER`: carries out what the autoscaler decides.

It runs on the head and keeps nothing: killed and started again, it has to watch for a while before
it drains.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from pie_cluster.directory.asking import Directory, DirectoryAway, DirectoryRefuses
from pie_cluster.machines.actors import connect, give_up_node, place_node, placed_nodes
from pie_cluster.machines.autoscale import Autoscale, Autoscaler
from pie_cluster.machines.settings import directory_of, read_folder
from pie_py.config.child import exit_with_parent

log = logging.getLogger("pie.scaler")

LOOK_SECONDS = 1.0


class Scaler:
    """Looks at the nodes, and has as many as are needed."""

    def __init__(self, settings: Autoscale, directory: Directory, models: str) -> None:
        """Has asked for none yet; takes the hash of the models that nodes serve."""
        self._settings = settings
        self._directory = directory
        self._models = models
        self._scaler = Autoscaler(settings, time.monotonic())
        self._asked: set[str] = set()  # and not seen to begin

    def look(self) -> None:
        """One look, and what follows from it. Raises `DirectoryAway` or `DirectoryRefuses`: the
        next look may do it.
        """
        directory = self._directory
        placed = placed_nodes()
        nodes = directory.nodes()
        self._asked -= {node.node for node in nodes}
        change = self._scaler.decide(nodes, placed, self._asked, time.monotonic())
        if change.add:
            self._add(change.add)
        for name in change.cancel:
            log.info("%s is given up", name)
            self._asked.discard(name)
            give_up_node(name)
        for name in change.drain:
            log.info("%s is drained", name)
            directory.drain(name, self._settings.drain_seconds)

    def _add(self, count: int) -> None:
        for name in self._directory.allot(count, self._models):
            log.info("%s is asked for", name)
            self._asked.add(name)
            place_node(name, self._settings.gpus)


def main() -> None:
    """Looks until the process ends."""
    exit_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    folder = Path(sys.argv[1])
    token, machine = read_folder(folder)
    assert machine.autoscale is not None, "its keeper has looked"
    connect(token.ray, machine.host, folder)
    scaler = Scaler(machine.autoscale, directory_of(token), token.models)
    while True:
        try:
            scaler.look()
        except (DirectoryAway, DirectoryRefuses) as error:
            log.warning("%s", error)
        time.sleep(LOOK_SECONDS)


if __name__ == "__main__":
    main()
