"""A user's share of each node of a cluster: real processes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from support.nodes import Nodes
from support.puppets_of_nodes import SOURCE

from pie_py.client.errors import RpcError
from pie_py.client.sync import Client

pytestmark = pytest.mark.slow


def test_a_user_has_his_share_of_each_node() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), "", ("ann",), max_instances=4, quota={"share": 0.5}) as nodes,
    ):
        nodes.start_all({"n1": {}, "n2": {}})
        with Client(nodes.gateway, nodes.key("ann")) as ann:
            ann.upload(SOURCE.read_bytes(), name="puppet")
            ids = [ann.launch("puppet").id for _ in range(4)]
            assert sorted(each.rpartition("@")[2] for each in ids) == ["n1.1"] * 2 + ["n2.1"] * 2
            with pytest.raises(RpcError, match=r"limit-exceeded: .* one user may have"):
                ann.launch("puppet")
