"""Users' keys as a node, and a machine that serves HTTP, know them, told by a real gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from cluster.messages import join
from support.nodes import Nodes

from pie_cluster.config import ClusterProblem, MemberConfig
from pie_cluster.directory.asking import Directory, DirectoryRefuses
from pie_cluster.gateway.document import ClusterDocument
from pie_cluster.machines.machine import copy_users
from pie_cluster.machines.settings import TOKEN_FILE, Token
from pie_cluster.node.document import BELIEVED_SECONDS, NodeDocument
from pie_cluster.wire.links import GatewayLink
from pie_control.rpc.auth import NotKnownNow
from pie_py.config.keys import LOCAL_USER, KeyStore, api_key, find_user


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    """A gateway, without nodes."""
    with Nodes(tmp_path, "", ("ann", "bob")) as nodes:
        yield nodes


@pytest.fixture
def keys(tmp_path: Path) -> KeyStore:
    """Those of the gateway's users."""
    return KeyStore(tmp_path / "data")


async def test_a_key_is_believed_until_keys_change_or_the_directory_is_silent(
    nodes: Nodes, keys: KeyStore, tmp_path: Path
) -> None:
    ann, bob = nodes.key("ann").public, nodes.key("bob").public
    public, now = keys.server_pair().public, 0.0
    member = MemberConfig(gateway=nodes.gateway, gateway_key=public, token=tmp_path / TOKEN_FILE)
    pair, link = member.pair, GatewayLink(member)
    (tmp_path / TOKEN_FILE).unlink()  # it is read once, not at each link
    assert pair is not None
    users = NodeDocument(member, link, "", lambda: now)
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        nursery.start_soon(users.run, "tcp://127.0.0.1:1")
        assert await users.find(pair.public) == LOCAL_USER
        assert [await users.find(key) for key in (ann, bob, "x" * 40)] == ["ann", "bob", None]
        before = users.changes
        keys.remove("bob")
        assert await users.find(bob) == "bob"  # no change is told yet
        told = partial(nodes.asked.ask, "report", **msgspec.structs.asdict(join()))
        users.renewed((await trio.to_thread.run_sync(told))["document"])
        with trio.fail_after(5):
            while users.changes == before:
                await trio.sleep(0.01)
        assert [await users.find(key) for key in (ann, bob)] == ["ann", None]
        nodes.gateway_process.kill()
        now += BELIEVED_SECONDS - 1
        assert await users.find(ann) == "ann"
        now += 2
        with pytest.raises(NotKnownNow):
            await users.find(ann)
        nursery.cancel_scope.cancel()


def test_damaged_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / "settings-of-nodes.json").write_text("[{")
    unused: Any = None
    with pytest.raises(ClusterProblem, match=r"settings-of-nodes\.json cannot .* set adapters"):
        ClusterDocument(tmp_path, None, unused, unused)


def test_a_user_asks_for_nothing_of_members(nodes: Nodes) -> None:
    user = Directory(nodes.gateway, nodes.key("ann"))
    asked: dict[str, dict[str, Any]] = {
        "begin": {"node": "n1"},
        "report": msgspec.structs.asdict(join()),
        "allot": {"count": 1, "cluster": ""},
        "document": {"version": 0},
        "program": {"hash": "0" * 64, "user": "ann"},
        "program-bytes": {"hash": "0" * 64},
        "drain": {"node": "n1", "seconds": 0},
    }
    for method, fields in asked.items():
        with pytest.raises(DirectoryRefuses) as refused:
            user.ask(method, **fields)
        assert refused.value.code == "permission-denied"


def test_a_machine_that_serves_http_has_a_copy_of_the_users(
    nodes: Nodes, keys: KeyStore, tmp_path: Path
) -> None:
    ann, bob = nodes.key("ann"), nodes.key("bob")
    fields: dict[str, Any] = json.loads((tmp_path / TOKEN_FILE).read_text())
    fields |= {"gateway": nodes.gateway, "gateway_key": keys.server_pair().public}
    fields |= {"ray": "", "ray_token": "", "versions": {}, "server": {}}
    token = Token(**fields)
    copied = KeyStore(tmp_path / "http")

    def copy(version: int) -> int:
        return copy_users(token, tmp_path / "http", version)

    version = copy(-1)
    assert find_user(api_key(ann), copied) == ann
    keys.remove("ann")
    ann_again = keys.add("ann")
    version = copy(version)
    assert copied.users() == {bob.public: "bob", ann_again.public: "ann"}
    keys.remove("bob")
    assert copy(version) != version
    assert copied.users() == {ann_again.public: "ann"}
