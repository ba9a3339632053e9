"""Users' keys as a node knows them, told by a real directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import trio
import zmq
from cluster.messages import join
from support.child_processes import ChildProcess
from support.clusters import SERVER, wait_for

from pie_cluster.config import MemberConfig
from pie_cluster.machines.machine import CopiedUsers
from pie_cluster.machines.settings import Token, write_private
from pie_cluster.machines.token import free_ports
from pie_cluster.node.links import GatewayLink
from pie_cluster.node.users import BELIEVED_SECONDS, ClusterUsers
from pie_cluster.wire.messages import Renewed, decode_told, encode
from pie_cluster.wire.requests import connected
from pie_cluster.wire.sockets import member_dealer
from pie_control.rpc.auth import NotKnownNow
from pie_py.client.errors import RpcError
from pie_py.config.keys import LOCAL_USER, KeyStore, api_key, find_user


class Node:
    """A member, and its directory with the keys of users below a folder."""

    def __init__(self, folder: Path) -> None:
        public, secret = (key.decode() for key in zmq.curve_keypair())
        write_private(folder / "members.json", json.dumps({"public": public, "secret": secret}))
        self.keys = KeyStore(folder)
        endpoint = f"tcp://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
        keys = folder / "members.json"
        self.member = MemberConfig(directory=endpoint, folder=folder, keys=keys)
        config = {
            **SERVER,
            "endpoint": "tcp://0.0.0.0:*",
            "data_folder": str(folder),
            "extension": asdict(self.member.extension()),
        }
        gateway = ChildProcess("pie_cluster.gateway", config, folder / "gateway.log")
        self.process = gateway.process
        self.member = self.member.model_copy(
            update={"gateway": gateway.endpoint, "gateway_key": self.keys.server_pair().public}
        )
        self.pair = self.member.pair()
        assert self.pair is not None
        self.now = 0.0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._dealer = member_dealer(self._context, endpoint, self.pair)

    def changes(self) -> int:
        """What a renewal of a lease tells now."""
        self._dealer.send(encode(join("n1", 1)))
        answer = decode_told(self._dealer.recv())
        assert isinstance(answer, Renewed), answer
        return answer.keys

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._context.destroy(linger=0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.end()


async def test_a_key_is_believed_until_keys_change_or_the_directory_is_silent(node: Node) -> None:
    ann, bob = node.keys.add("ann").public, node.keys.add("bob").public

    link = GatewayLink(node.member)
    users = ClusterUsers(node.member, link, lambda: node.now)
    async with trio.open_nursery() as nursery:
        await nursery.start(link.run)
        assert node.pair is not None
        assert await users.find(node.pair.public) == LOCAL_USER
        users.renewed(1)
        assert [await users.find(key) for key in (ann, bob, "x" * 40)] == ["ann", "bob", None]
        node.keys.remove("bob")
        assert await users.find(bob) == "bob"  # no change is told yet
        users.renewed(2)
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
        ("allot", {"count": 1, "models": ""}),
        ("user-of", {"key": ""}),
        ("users", {"changes": 0}),
        ("settings", {}),
    ],
)
async def test_a_user_asks_for_nothing_of_members(
    node: Node, method: str, asked: dict[str, Any]
) -> None:
    ann = node.keys.add("ann")

    with pytest.raises(RpcError, match="permission-denied"):
        async with connected(node.member.gateway, ann) as connection:
            await connection.request(method, **asked)


def test_renewals_tell_that_keys_have_changed(node: Node) -> None:
    told = node.changes()
    node.keys.add("ann")
    wait_for(lambda: node_changed(node, told), 5)
    told = node.changes()
    node.keys.remove("ann")
    wait_for(lambda: node_changed(node, told), 5)


def node_changed(node: Node, told: int) -> bool:
    return node.changes() != told


def test_a_machine_that_serves_http_has_a_copy_of_the_users(node: Node, tmp_path: Path) -> None:
    assert node.pair is not None
    token = Token(
        gateway=node.member.gateway,
        directory=node.member.directory,
        ray="",
        ray_token="",
        member_public=node.pair.public,
        member_secret=node.pair.secret,
        gateway_key=node.member.gateway_key,
        versions={},
        server={},
    )
    ann = node.keys.add("ann")
    copy, copied = CopiedUsers(token, tmp_path / "http"), KeyStore(tmp_path / "http")
    copy._look()
    assert copy.known
    assert find_user(api_key(ann), copied) == ann
    bob = node.keys.add("bob")
    node.keys.remove("ann")
    ann_again = node.keys.add("ann")
    copy._look()
    assert copied.users() == {bob.public: "bob", ann_again.public: "ann"}
    node.keys.remove("bob")
    copy._look()
    assert copied.users() == {ann_again.public: "ann"}
