"""What a machine's keeper does while Ray is not there to place its nodes."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from support.clusters import wait_for

from pie_cluster.machines.machine import MachineKeeper
from pie_cluster.machines.settings import ClusterConfig, Machine
from pie_cluster.machines.token import make_token
from pie_py.config.processes import Child

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")


def test_pauses_grow_while_nodes_cannot_be_placed(tmp_path: Path) -> None:
    token = make_token(ClusterConfig(endpoint="tcp://127.0.0.1:*", folder=tmp_path), tmp_path)
    token.write(tmp_path / "token.json")
    machine = Machine(role="nodes", host="127.0.0.1", room=1)
    machine.write(tmp_path)
    keeper = MachineKeeper(tmp_path)
    (tmp_path / "token.json").unlink()  # so that each try fails
    (tmp_path / "nodes.json").write_text("[]")
    agent = keeper.keep("agent", partial(Child, "json.tool", reports=False))  # waits for its input
    placing = keeper.keep("placing", keeper._placer)
    pauses = []
    for _ in range(2):
        wait_for(lambda: placing.child is not None)
        wait_for(lambda: placing.child is None)
        ended = time.monotonic()
        wait_for(lambda: placing.child is not None)
        pauses.append(time.monotonic() - ended)
    assert agent.starts == 1
    assert pauses[1] > 0.1
    placing.stop(0)
    agent.stop(0)
