"""What a machine's keeper does while Ray is not there to place its nodes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.clusters import wait_for

from pie_cluster.machines.machine import MachineKeeper
from pie_cluster.machines.settings import ClusterConfig, Machine
from pie_cluster.machines.token import make_token

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")


def test_pauses_grow_while_nodes_cannot_be_placed(tmp_path: Path) -> None:
    token = make_token(ClusterConfig(endpoint="tcp://127.0.0.1:*", folder=tmp_path), tmp_path)
    (tmp_path / "token.json").write_text(token.model_dump_json())
    machine = Machine(role="nodes", host="127.0.0.1", nodes=1, room=1)
    (tmp_path / "machine.json").write_text(machine.model_dump_json())
    keeper = MachineKeeper(tmp_path)
    (tmp_path / "token.json").unlink()  # so that each try fails
    pauses = []

    def runs(wanted: bool) -> bool:
        keeper._place_nodes(1)
        return (keeper._placing is not None) is wanted

    for _ in range(2):
        wait_for(lambda: runs(True))
        wait_for(lambda: runs(False))
        ended = time.monotonic()
        wait_for(lambda: runs(True))
        pauses.append(time.monotonic() - ended)
    assert pauses[1] > 0.1
    assert keeper._placing is not None
    keeper._placing.kill()
