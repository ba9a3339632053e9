"""Two nodes behind a gateway: each user's share of them, and what is set on all of them."""

from __future__ import annotations

import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.clusters import ECHO, echoes, wait_for
from support.nodes import Node, Nodes

from pie_py.client import RpcError
from pie_py.client.sync import Client

pytestmark = pytest.mark.slow

BOBS_SHARE = 0.005
MOST_INSTANCES = 400  # of a node: two are bob's


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    shares = {"bob": {"share": BOBS_SHARE}}
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(
            Path(folder), "", ("ann", "bob"), max_instances=MOST_INSTANCES, quotas=shares
        ) as nodes,
    ):
        yield nodes


@pytest.fixture(scope="module")
def started(nodes: Nodes) -> list[Node]:
    return nodes.start_all({"n1": {}, "n2": {}})


def test_a_user_has_a_share_of_each_node(nodes: Nodes, started: list[Node]) -> None:
    with Client(nodes.gateway, nodes.key("bob")) as bob:
        bob.upload(ECHO, name="echo")
        ids = [bob.launch("echo").id for _ in range(4)]
        assert sorted(each.rpartition("@")[2] for each in ids) == ["n1.1"] * 2 + ["n2.1"] * 2
        with pytest.raises(RpcError, match=r"limit-exceeded: .* one user may have"):
            bob.launch("echo")


@pytest.mark.nightly
def test_a_node_that_was_silent_has_no_more_than_others(nodes: Nodes, started: list[Node]) -> None:
    """Of what is set at the gateway meanwhile."""
    old, new = "http://127.0.0.1:1", "http://127.0.0.1:2"
    _, node = started
    with Client(nodes.gateway, nodes.key("ann")) as ann, nodes.client(node, "ann") as there:

        def has() -> dict[str, str]:
            return {one["name"]: one["at"] for one in there.mcp_servers()}

        ann.register_mcp("changed", old)
        ann.register_mcp("removed", old)
        assert has() == {"changed": old, "removed": old}
        node.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: "n2" not in nodes.ready())
        ann.unregister_mcp("removed")
        ann.unregister_mcp("changed")
        ann.register_mcp("changed", new)
        node.process.send_signal(signal.SIGCONT)
        wait_for(lambda: has() == {"changed": new})


@pytest.mark.nightly
def test_a_gateway_at_an_ipv6_address_leads_to_its_nodes() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("there is no IPv6 here")
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), "", ("ann",), host="[::]") as nodes,
        Client(nodes.gateway.replace("[::]", "[::1]"), nodes.key("ann")) as client,
    ):
        nodes.start("n1")
        client.upload(ECHO, name="echo")
        assert echoes(client.launch("echo"))
