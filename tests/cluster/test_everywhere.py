"""What is set at the gateway, on nodes that fall silent for a while: real processes."""

from __future__ import annotations

import signal
import tempfile
from pathlib import Path

import pytest
from support.clusters import wait_for
from support.nodes import Nodes

from pie_py.client.sync import Client

pytestmark = pytest.mark.slow

OLD, NEW = "http://127.0.0.1:1", "http://127.0.0.1:2"


def test_a_node_that_was_silent_has_no_more_than_others() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), "", ("ann",)) as nodes,
    ):
        _, node = nodes.start_all({"n1": {}, "n2": {}})
        with Client(nodes.gateway, nodes.key("ann")) as ann, nodes.client(node, "ann") as there:

            def has() -> dict[str, str]:
                return {one["name"]: one["at"] for one in there.mcp_servers()}

            ann.register_mcp("changed", OLD)
            ann.register_mcp("removed", OLD)
            assert has() == {"changed": OLD, "removed": OLD}
            node.process.send_signal(signal.SIGSTOP)
            wait_for(lambda: "n2" not in nodes.ready())
            ann.unregister_mcp("removed")
            ann.unregister_mcp("changed")
            ann.register_mcp("changed", NEW)
            node.process.send_signal(signal.SIGCONT)
            wait_for(lambda: has() == {"changed": NEW})
