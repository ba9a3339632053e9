"""A cluster of several machines, which are network namespaces: keys, encryption, a cable cut."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.error import HTTPError

import pytest
from support.clusters import SERVER, chat_at, echoes, launched_on, wait_for
from support.namespaces import Network, Sniffer, missing

from pie_cluster.config import ClusterProblem
from pie_cluster.directory.asking import Directory, DirectoryRefuses
from pie_cluster.machines import operate
from pie_cluster.machines.settings import ClusterConfig, Token, directory_of
from pie_cluster.wire.messages import NodeFacts
from pie_py.client import InferletFailed, RpcError, ServerUnreachable
from pie_py.client.sync import Client
from pie_py.config.gateway import GatewayConfig
from pie_py.config.keys import ClientKey, KeyStore, api_key

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")
pytestmark = pytest.mark.slow

MARK = "this-text-must-not-be-seen-on-the-wire"
on = partial(launched_on, mark=MARK)


class Machines:
    """A head with a node, a far machine with another one, and a desk where clients are."""

    def __init__(self, folder: Path, network: Network) -> None:
        """Starts nothing yet."""
        self.network = network
        self.folder = folder
        host = network.addresses["head"]
        self.config = ClusterConfig(
            endpoint=f"tcp://{host}:*",
            host=host,
            folder=folder / "head",
            gateway=GatewayConfig(http=f"{host}:0"),
            server=SERVER,
        )
        self._stack = ExitStack()
        self.keys = KeyStore(folder / "head/data")
        self._keys = {"dan": self.keys.add("dan")}  # HTTP wants a user before it starts

    def start(self) -> None:
        """The far machine gets nothing but a copy of the token."""
        self.token: Token = self.network.on("head", operate.up, self.config, print)
        token = self.folder / "copied.json"
        token.write_bytes((self.folder / "head/token.json").read_bytes())
        self.join(token, http=f"{self.network.addresses['far']}:0")

    def join(self, token: Path, host: str | None = None, http: str | None = None) -> None:
        """The far machine joins."""
        far = self.token.gateway, token, self.folder / "far", 1, host, print
        self.network.on("far", operate.join, *far, http=http)

    def stop(self) -> None:
        self._stack.close()
        self.network.on("far", operate.down, self.folder / "far")
        self.network.on("head", operate.down, self.config.folder)

    def key(self, user: str) -> ClientKey:
        """A user's, which is made when it is asked for first."""
        if user not in self._keys:
            self._keys[user] = self.keys.add(user)
        return self._keys[user]

    def client(self, user: str) -> Client:
        """A client at the desk."""
        client = Client(self.token.gateway, self.key(user), patience=30)
        self._stack.callback(self.network.on, "desk", client.__exit__, None, None, None)
        return self.network.on("desk", client.__enter__)

    def refusal(self, endpoint: str, key: ClientKey | None) -> str:
        """Why a client at the desk is not let in."""
        with pytest.raises(ServerUnreachable) as refused:
            self.network.on("desk", Client(endpoint, key, patience=30).__enter__)
        return str(refused.value)

    def chat(self, machine: str, key: str) -> None:
        """A chat over HTTP from the desk with a machine."""
        url = operate.http_url(self.folder / machine)
        assert url is not None
        model = Path(SERVER["models"][0]["source"]).name
        self.network.on("desk", chat_at, url, model, "Hello", key)

    def nodes(self) -> dict[str, NodeFacts]:
        found = self.network.on("head", directory_of(self.token).nodes)
        return {node.node: node for node in found}

    def state(self, node: str) -> str:
        found = self.nodes().get(node)
        return "gone" if found is None or found.state == "lost" else found.state


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Network(["head", "far", "desk"]) as network,
    ):
        machines = Machines(Path(folder), network)
        try:
            machines.start()
            yield machines
        finally:
            machines.stop()


@pytest.fixture(scope="module")
def wire(machines: Machines) -> Iterator[Sniffer]:
    sniffer = Sniffer(machines.network, MARK.encode())
    yield sniffer
    sniffer.close()


@pytest.fixture(scope="module")
def ann(machines: Machines, wire: Sniffer) -> Client:
    """A user whose key was made after the start."""
    return machines.client("ann")


@pytest.mark.nightly
def test_users_are_known_on_all_machines(machines: Machines, ann: Client) -> None:
    near, far = on(ann, "n1"), on(ann, "n2")
    assert echoes(near, MARK)
    assert echoes(far, MARK)
    other = machines.client("bob")
    with pytest.raises(RpcError, match="not-found"):
        other.attach(far.id)
    assert other.instances() == []
    assert {near.id, far.id} <= {one["id"] for one in ann.instances()}
    again = machines.client("ann")
    attached = again.attach(far.id)
    assert echoes(attached, MARK)
    assert again.kill(near.id)
    assert [model["name"] for model in ann.models()] == ["pie-tiny"]
    copied = KeyStore(machines.folder / "far/http")  # for HTTP there; the head's are far away
    wait_for(lambda: {"ann", "bob"} <= set(copied.users().values()))


@pytest.mark.nightly
def test_http_is_served_by_each_machine_that_is_to_and_by_the_rest_when_one_has_died(
    machines: Machines,
) -> None:
    key = api_key(machines.key("dan"))
    for machine in ("head", "far"):
        machines.chat(machine, key)
        with pytest.raises(HTTPError, match="401"):
            machines.chat(machine, key[:-1])
    later = api_key(machines.key("fay"))
    wait_for(lambda: serves(machines, "far", later))
    processes = machines.folder / "head/processes.json"
    former = json.loads(processes.read_text())["http"]
    os.kill(former["pid"], signal.SIGKILL)
    machines.chat("far", key)
    wait_for(lambda: json.loads(processes.read_text()).get("http", former) != former)
    wait_for(lambda: serves(machines, "head", key))
    machines.keys.remove("fay")
    wait_for(lambda: not serves(machines, "far", later))
    machines.chat("far", key)


def serves(machines: Machines, machine: str, key: str) -> bool:
    try:
        machines.chat(machine, key)
    except OSError:
        return False
    return True


def test_a_user_gets_no_rights_of_a_member(machines: Machines, ann: Client) -> None:
    """Neither by a request nor by what is told: who has a port of Ray's runs what they like."""
    token = machines.token
    told = json.dumps([ann.server_info(), ann.instances(), ann.stats(), ann.models()])
    for secret in (token.ray_token, token.member_secret, token.member_public, token.ray):
        assert secret not in told
    node = machines.nodes()["n2"]
    at_node = replace(machines.key("ann"), server=node.public_key)
    adapter = {"model": "m", "name": "n", "folder": "/"}  # test_users.py has what a gateway refuses
    ask = partial(Directory(node.endpoint, at_node).ask, "load-adapter", **adapter)
    with pytest.raises(DirectoryRefuses) as refused:
        machines.network.on("desk", ask)
    assert refused.value.code == "permission-denied"


def test_who_has_no_key_enters_nowhere(machines: Machines, tmp_path: Path) -> None:
    stranger = KeyStore(tmp_path).add("ann")
    nodes = machines.nodes()
    places = {machines.token.gateway: machines.token.gateway_key}
    places |= {node.endpoint: node.public_key for node in nodes.values()}
    assert len(set(places.values())) == 2  # a machine that joins has keys of its own
    for endpoint, public in places.items():
        assert "wants a key" in machines.refusal(endpoint, None)
        key = replace(stranger, server=public)
        assert "does not accept this key" in machines.refusal(endpoint, key)


def test_a_removed_key_ends_what_it_has_opened_on_all_machines(
    machines: Machines, ann: Client
) -> None:
    other = on(ann, "n2")
    eve, key = machines.client("eve"), machines.key("eve")
    far = on(eve, "n2")
    assert echoes(far, MARK)
    machines.keys.remove("eve")
    began = time.monotonic()
    with pytest.raises(ServerUnreachable, match="this key was removed"):
        far.result()
    assert time.monotonic() - began < 5
    node = machines.nodes()["n2"]
    at_node = replace(key, server=node.public_key)
    assert "does not accept this key" in machines.refusal(node.endpoint, at_node)
    assert "does not accept this key" in machines.refusal(machines.token.gateway, key)
    assert echoes(other, MARK)


@pytest.mark.nightly
def test_a_machine_that_is_cut_off_comes_back_as_another_life(
    machines: Machines, ann: Client
) -> None:
    near, far = on(ann, "n1"), on(ann, "n2")
    assert echoes(far, MARK)
    machines.network.cut("far")
    began = time.monotonic()
    with pytest.raises(InferletFailed, match=r"^node-lost: "):
        far.result()
    assert time.monotonic() - began < 5
    assert echoes(near, MARK)
    assert all((ann.launch("echo").node or "").startswith("n1.") for _ in range(5))
    wait_for(lambda: machines.state("n2") != "silent", 15)
    machines.network.mend("far")
    wait_for(lambda: machines.state("n2") == "ready")
    assert echoes(near, MARK)
    back = on(ann, "n2")
    assert echoes(back, MARK)
    assert (back.node, far.node) == ("n2.2", "n2.1")  # one partition ends one life
    with pytest.raises(RpcError, match="node-lost"):
        ann.attach(far.id)


def test_an_address_that_does_not_fit_is_told(machines: Machines) -> None:
    machines.network.on("far", operate.down, machines.folder / "far")
    token = machines.folder / "head/token.json"
    for asked_host, words in (
        ("127.0.0.1", "does not reach this machine"),
        ("10.77.0.9", "is none of this machine"),
    ):
        with pytest.raises(ClusterProblem, match=words):
            machines.join(token, asked_host)


def test_nothing_passes_in_the_clear(machines: Machines, ann: Client, wire: Sniffer) -> None:
    assert echoes(on(ann, "n1"), MARK)
    assert wire.packets > 1000
    assert wire.found == 0
    listener = machines.network.on("far", socket.create_server, ("", 0))
    where = (machines.network.addresses["far"], listener.getsockname()[1])
    plain = machines.network.on("desk", socket.create_connection, where)
    plain.sendall(MARK.encode())
    wait_for(lambda: wire.found > 0, 5)  # it would have been seen
    plain.close()
    listener.close()
