"""A node whose ranks are on two machines, which are network namespaces."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from support.child_processes import command_line
from support.clusters import SERVER, processes_of, wait_for
from support.namespaces import Network, missing
from support.servers import Server

from pie_cluster.machines import operate
from pie_cluster.machines.settings import ClusterConfig, RankConfig, Token
from pie_cluster.wire.messages import WAITS, NodeFacts
from pie_py.client import InferletFailed, RpcError
from pie_py.client.sync import Client, Instance
from pie_py.config.keys import KeyStore

pytest.importorskip("ray", reason="clusters need Ray: pip install 'pie-py[cluster]'")

MODEL = {**SERVER["models"][0], "kv_pages": 64, "embeds": 256, "host_pages": 8}
WRITES = b"""
from inferlet import Context, Model, Sampler, session


async def main(args):
    context = Context(Model.load()).fill(args[0])
    tokens = context.generate(Sampler.argmax(), max_tokens=int(args[1]), stop=[])
    session.send("begun")
    return str(await tokens.collect_tokens())
"""
LOST = r"^(worker|node)-lost: "

Value = TypeVar("Value")


class Machines:
    """A head, and a far machine; both have a part of two nodes."""

    def __init__(self, folder: Path, network: Network) -> None:
        """Starts nothing yet."""
        self.network = network
        self.folder = folder
        host = network.addresses["head"]
        server: dict[str, Any] = {
            **SERVER,
            "models": [MODEL],
            "worker_module": "pie_inference",
            "worker_threads": 1,
            "tensor_parallel_size": 2,
        }
        self.config = ClusterConfig(
            endpoint=f"tcp://{host}:*",
            host=host,
            nodes=2,
            folder=folder / "head",
            ranks=RankConfig(machines=2, over_tcp=True),
            server=server,
        )
        self.said: list[str] = []
        self._stack = ExitStack()

    def up(self) -> None:
        """The head alone."""
        self.token: Token = self.network.on("head", operate.up, self.config, self.said.append)

    def join(self) -> list[str]:
        """The far machine comes."""
        token = self.folder / "head/token.json"
        where = (self.token.gateway, token, self.folder / "far")
        return self.network.on("far", operate.join, *where, None, None, print, 2)

    def leave(self) -> None:
        """The far machine goes."""
        self.network.on("far", operate.down, self.folder / "far")

    def stop(self) -> None:
        self._stack.close()
        self.leave()
        self.network.on("head", operate.down, self.config.folder)

    def client(self) -> Client:
        """On the head."""
        key = KeyStore(Path(self.token.server["data_folder"])).add("ann")
        client = Client(self.token.gateway, key, patience=30)
        self._stack.callback(self.network.on, "head", client.__exit__, None, None, None)
        return self.network.on("head", client.__enter__)

    def states(self) -> list[str]:
        """Of the nodes that the directory knows."""
        nodes = self.network.on("head", operate.nodes_of, self.token)
        return [node.state for node in nodes]

    @property
    def node(self) -> NodeFacts:
        """The node that stays."""
        nodes = self.network.on("head", operate.nodes_of, self.token)
        [node] = nodes
        return node

    def ranks(self) -> list[psutil.Process]:
        """The processes of ranks on the far machine."""
        return [p for p in processes_of(self.folder) if "--follow" in command_line(p)]


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Network(["head", "far"]) as network,
    ):
        machines = Machines(Path(folder), network)
        try:
            machines.up()
            yield machines
        finally:
            machines.stop()
            wait_for(lambda: not processes_of(Path(folder)))


@pytest.fixture(scope="module")
def client(machines: Machines) -> Client:
    client = machines.client()
    client.upload(WRITES, name="writes")
    return client


def settled(act: Callable[[], Value]) -> Value:
    """What an act gives, again while it is lost with its node or finds none: a life may begin on a
    machine that Ray then finds it has declared dead, and another one after it.
    """
    end = time.monotonic() + 90
    while True:
        try:
            return act()
        except (InferletFailed, RpcError) as error:
            if time.monotonic() > end or not re.match(f"{LOST}|busy: ", str(error)):
                raise
        time.sleep(0.2)


def written(client: Client, tokens: int = 24) -> str:
    """What the model writes."""

    def write() -> str:
        text: str = client.launch("writes", ["one two three", str(tokens)]).result()
        return text

    return settled(write)


def begun(client: Client) -> Instance:
    """An instance that writes for long."""

    def begin() -> Instance:
        instance = client.launch("writes", ["one two three", "900"])
        assert instance.receive() == "begun"
        return instance

    return settled(begin)


def check_lost(instance: Instance, began: float) -> None:
    """It ends within five seconds."""
    with pytest.raises(InferletFailed, match=LOST):
        instance.result()
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_nodes_wait_for_a_second_machine(machines: Machines, client: Client) -> None:
    assert machines.said[-1].startswith(f"n2 {WAITS}2 machines with room each: join")
    assert machines.states() == ["starting", "starting"]
    assert machines.join() == []
    wait_for(lambda: machines.states() == ["ready", "ready"], 60)


@pytest.mark.slow
def test_a_drained_node_leaves_its_machines(machines: Machines, client: Client) -> None:
    assert len(machines.ranks()) == 2
    machines.network.on("head", operate.drain, machines.token, "n2", 0)
    wait_for(lambda: machines.states() == ["ready"], 10)
    wait_for(lambda: len(machines.ranks()) == 1, 10)


@pytest.mark.slow
def test_two_machines_write_what_one_does(machines: Machines, client: Client) -> None:
    text = written(client)
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as short,
        Server(Path(short), models=[MODEL]) as server,
        server.client() as alone,
    ):
        alone.upload(WRITES, name="writes")
        assert written(alone) == text


@pytest.mark.slow
def test_a_rank_that_is_killed_is_replaced(machines: Machines, client: Client) -> None:
    text, instance, node = written(client), begun(client), machines.node
    began = time.monotonic()
    (rank,) = machines.ranks()
    rank.kill()
    check_lost(instance, began)
    assert written(client) == text
    assert machines.node.incarnation == node.incarnation  # the worker alone was replaced


@pytest.mark.nightly
@pytest.mark.slow
def test_an_actor_of_ranks_that_is_killed_is_replaced(machines: Machines, client: Client) -> None:
    text, instance, node = written(client), begun(client), machines.node
    (rank,) = machines.ranks()
    actor = rank.parent()
    assert actor is not None
    began = time.monotonic()
    actor.kill()
    check_lost(instance, began)
    wait_for(lambda: not rank.is_running(), 10)
    assert written(client) == text
    assert machines.node.incarnation == node.incarnation


@pytest.mark.nightly
@pytest.mark.slow
def test_a_machine_that_is_cut_off_is_waited_for(machines: Machines, client: Client) -> None:
    text, instance = written(client), begun(client)
    machines.network.cut("far")
    check_lost(instance, time.monotonic())
    wait_for(lambda: machines.states() != ["ready"], 30)
    machines.network.mend("far")
    wait_for(lambda: machines.states() == ["ready"], 90)
    assert written(client) == text


@pytest.mark.slow
def test_a_machine_that_goes_leaves_nothing(machines: Machines, client: Client) -> None:
    machines.leave()
    # Ranks on the head name the far machine's keys, if the first one was there.
    wait_for(lambda: not processes_of(machines.folder / "far"), 40)
    wait_for(lambda: machines.states() != ["ready"], 30)
