"""Users' keys as a node, and a machine that serves HTTP, know them, told by a real gateway."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import zmq
from cluster.messages import join
from support.child_processes import ChildProcess
from support.clusters import SERVER

from pie_cluster.config import MemberConfig
from pie_cluster.directory.asking import Directory, DirectoryRefuses
from pie_cluster.machines.machine import copy_users
from pie_cluster.machines.settings import TOKEN_FILE, Token, directory_of, write_private
from pie_cluster.node.document import BELIEVED_SECONDS, NodeDocument
from pie_cluster.wire.links import GatewayLink
from pie_control.rpc.auth import NotKnownNow
from pie_py.config.keys import LOCAL_USER, KeyStore, api_key, find_user


class Node:
    """A member, and a gateway with the keys of users below a folder."""

    def __init__(self, folder: Path) -> None:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        self.public = public
        self.keys = KeyStore(folder)
        token = Token(
            gateway="",
            ray="",
            ray_token="",
            member_public=public,
            member_secret=secret,
            gateway_key=self.keys.server_pair().public,
            versions={},
            server={},
        )
        write_private(folder / TOKEN_FILE, token.model_dump_json())
        member = MemberConfig(folder=folder, token=folder / TOKEN_FILE)
        config = {
            **SERVER,
            "endpoint": "tcp://0.0.0.0:*",
            "data_folder": str(folder),
            "extension": asdict(member.extension()),
        }
        gateway = ChildProcess("pie_cluster.gateway", config, folder / "gateway.log")
        self.process = gateway.process
        self.token = token.model_copy(update={"gateway": gateway.endpoint})
        self.member = member.model_copy(
            update={"gateway": gateway.endpoint, "gateway_key": token.gateway_key}
        )
        self.directory: Directory = directory_of(self.token)
        self.now = 0.0

    def version(self) -> int:
        """What a renewal of a lease tells now."""
        found: int = self.directory.ask("report", **msgspec.structs.asdict(join()))["document"]
        return found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.end()


async def test_a_key_is_believed_until_keys_change_or_the_directory_is_silent(node: Node) -> None:
    ann, bob = node.keys.add("ann").public, node.keys.add("bob").public
    link = GatewayLink(node.member)
    users = NodeDocument(node.member, link, "", lambda: node.now)
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        nursery.start_soon(users.run, "tcp://127.0.0.1:1")
        assert await users.find(node.public) == LOCAL_USER
        assert [await users.find(key) for key in (ann, bob, "x" * 40)] == ["ann", "bob", None]
        before = users.changes
        node.keys.remove("bob")
        assert await users.find(bob) == "bob"  # no change is told yet
        users.renewed(await trio.to_thread.run_sync(node.version))
        with trio.fail_after(5):
            while users.changes == before:
                await trio.sleep(0.01)
        assert [await users.find(key) for key in (ann, bob)] == ["ann", None]
        node.end()
        node.now += BELIEVED_SECONDS - 1
        assert await users.find(ann) == "ann"
        node.now += 2
        with pytest.raises(NotKnownNow):
            await users.find(ann)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("method", "asked"),
    [
        ("begin", {"node": "n1"}),
        ("report", msgspec.structs.asdict(join())),
        ("allot", {"count": 1, "cluster": ""}),
        ("document", {"version": 0}),
    ],
)
def test_a_user_asks_for_nothing_of_members(node: Node, method: str, asked: dict[str, Any]) -> None:
    with pytest.raises(DirectoryRefuses) as refused:
        Directory(node.member.gateway, node.keys.add("ann")).ask(method, **asked)
    assert refused.value.code == "permission-denied"


def test_a_machine_that_serves_http_has_a_copy_of_the_users(node: Node, tmp_path: Path) -> None:
    ann = node.keys.add("ann")
    copied = KeyStore(tmp_path / "http")

    def copy(version: int) -> int:
        return copy_users(node.token, tmp_path / "http", version)

    version = copy(-1)
    assert find_user(api_key(ann), copied) == ann
    bob = node.keys.add("bob")
    node.keys.remove("ann")
    ann_again = node.keys.add("ann")
    version = copy(version)
    assert copied.users() == {bob.public: "bob", ann_again.public: "ann"}
    node.keys.remove("bob")
    assert copy(version) != version
    assert copied.users() == {ann_again.public: "ann"}
