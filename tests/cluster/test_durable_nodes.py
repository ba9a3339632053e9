"""Nodes that are killed, stopped, drained or cut off: durable instances go on at another one, and
requests over HTTP of which nothing was sent are tried there. Real processes and PostgreSQL.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from support.clusters import Wire, wait_for
from support.durable import COUNT, Game
from support.nodes import PATIENCE_SECONDS, Nodes
from support.postgres import Postgres

from pie_gateway.backend.backend import Backend
from pie_gateway.backend.generation import Generation, Observer
from pie_gateway.backend.job import Job, Piece
from pie_py.client import Client as AsyncClient
from pie_py.client import InferletFailed, RpcError
from pie_py.client import Instance as AsyncInstance
from pie_py.client.sync import Client, Instance
from pie_py.config.gateway import GatewayConfig

pytest.importorskip("psycopg")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def nodes(postgres: Postgres) -> Iterator[Nodes]:
    with (
        postgres.database() as address,
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), address, ("ann", "bob")) as nodes,
    ):
        nodes.start_all({"n1": {}, "n2": {}})
        yield nodes


@pytest.fixture(autouse=True)
def both_ready(nodes: Nodes) -> None:
    """Starts again what a test before has lost."""
    if lost := {"n1", "n2"} - nodes.ready():
        nodes.start_all({name: {} for name in lost})


@pytest.fixture
def client(nodes: Nodes) -> Iterator[Client]:
    with Client(nodes.gateway, key=nodes.key("ann"), patience=PATIENCE_SECONDS) as client:
        client.upload(COUNT.encode(), name="count")
        yield client


def launched(client: Client, name: str, rounds: int) -> Instance:
    args = ["--name", name, "--rounds", str(rounds), "--anew", "1"]
    return client.launch("count", args, durable=True)


def play(instance: Instance, rounds: int, heard: list[str]) -> None:
    """Reads so many messages and answers each."""
    for _ in range(rounds):
        heard.append(str(instance.receive()))
        instance.send(f" {len(heard)}")


def test_an_instance_goes_on_when_its_node_is_killed_or_drained(
    nodes: Nodes, client: Client
) -> None:
    plain = client.launch("count", ["--name", "plain", "--rounds", "6"])
    expected: list[str] = []
    play(plain, 6, expected)
    assert plain.result() == "6"
    instance, heard = launched(client, "moved", 6), list[str]()
    play(instance, 2, heard)
    first = instance.node or ""
    nodes.kill(first)
    nodes.start(first.partition(".")[0])
    play(instance, 2, heard)
    second = instance.node or ""
    assert second != first
    nodes.drain(second)
    play(instance, 2, heard)
    assert heard == expected
    assert instance.result() == "6"
    third = instance.node or ""
    assert len({first, second, third}) == 3
    with Client(nodes.gateway, key=nodes.key("bob")) as other, pytest.raises(RpcError):
        other.result(instance.id)
    # Its end and its journal outlive its last node.
    nodes.start(second.partition(".")[0])
    nodes.kill(third)
    nodes.start(third.partition(".")[0])
    assert client.result(instance.id) == "6"
    assert client.attach(instance.id).result() == "6"
    assert [call["call"] for call in client.calls(instance.id)].count(
        "session.send"
    ) == 3  # since its checkpoint
    branch = client.branch(instance.id, at=3)
    assert branch.node not in (None, third)
    branch.cancel()


def test_a_node_that_was_stopped_writes_no_more(nodes: Nodes, client: Client) -> None:
    """While it stands still another one goes on; when it wakes, nothing of it counts."""
    instance, heard = launched(client, "stopped", 4), list[str]()
    play(instance, 2, heard)
    node = nodes.find(instance.node or "")
    node.process.send_signal(signal.SIGSTOP)
    try:
        nodes.begin(node)  # as its keeper does
        play(instance, 1, heard)
        assert instance.node != node.life
    finally:
        node.process.send_signal(signal.SIGCONT)
    play(instance, 1, heard)
    assert instance.result() == "4"
    assert [int(one.split()[1]) for one in heard] == [1, 2, 3, 4]
    node.process.wait(30)  # it was told that its life is over


class Kills(Observer):
    """Kills the node of a generation as soon as it is launched, once."""

    def __init__(self, nodes: Nodes) -> None:
        self.lives: list[str] = []
        self._nodes = nodes

    def launched(self, instance: str) -> None:
        """The request is under way, and nothing of it was sent."""
        self.lives.append(instance.rpartition("@")[2])
        if len(self.lives) == 1:
            self._nodes.kill(self.lives[0])


SILENT = b"""\
from inferlet import session

async def main(*argument: str) -> None:
    await session.receive()
"""


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_over_http_is_tried_at_another_node(nodes: Nodes, *, stream: bool) -> None:
    """Streamed, its program must have said nothing: the first one is a program that never does."""
    kills = Kills(nodes)

    async def ask() -> int:
        key = nodes.key("ann")
        async with AsyncClient(nodes.gateway, key=key, patience=PATIENCE_SECONDS) as client:
            backend = Backend(client, GatewayConfig(), time.monotonic, 60.0)
            (model,) = {model["name"] for model in await client.models()}
            job = Job(model, {}, text="Once", max_tokens=500, stream=stream)
            silent = await client.upload(SILENT, "silent")

            async def launch(argument: str) -> AsyncInstance:
                if stream and not kills.lives:
                    return await client.launch(silent)
                return await backend._launch("completions", {}, argument)

            generation = Generation(launch, job, ())
            generation.observers.append(kills)
            async with generation:
                await generation.prompt()
                events = [event async for event in generation.events()]
            return sum(event.tokens for event in events if isinstance(event, Piece))

    assert anyio.run(ask) == 500
    first, second = kills.lives
    assert first != second


@pytest.mark.usefixtures("client")  # which uploads the program
def test_a_machine_that_is_cut_off_loses_its_streams(nodes: Nodes) -> None:
    """To who is cut off, both node and gateway are silent."""

    async def read() -> str:
        key = nodes.key("ann")
        async with AsyncClient(
            nodes.gateway, key=key, patience=PATIENCE_SECONDS, cut_seconds=4.0
        ) as client:
            instance = await client.launch("count", ["--name", "cut-off", "--rounds", "2"])
            await instance.receive()
            stopped = [nodes.find(instance.node or "").process, nodes.gateway_process]
            for process in stopped:
                process.send_signal(signal.SIGSTOP)
            try:
                with anyio.fail_after(60), pytest.raises(InferletFailed) as failed:
                    await instance.result()
            finally:
                for process in stopped:
                    process.send_signal(signal.SIGCONT)
        return failed.value.text

    assert anyio.run(read).startswith("node-lost: neither node")


@pytest.mark.nightly
@pytest.mark.timeout(0)  # on a busy machine each start takes long
def test_nothing_is_lost_or_doubled_by_nodes_that_are_killed(
    nodes: Nodes, client: Client, postgres: Postgres
) -> None:
    chance, counters, rounds = random.Random(0), 6, 120
    key, program = nodes.key("ann"), client.upload(COUNT.encode(), name="count")

    def connect() -> AsyncClient:
        return AsyncClient(nodes.gateway, key=key, patience=PATIENCE_SECONDS)

    game = Game(connect, program, "game", counters, rounds, pause=0.1)
    for _ in range(counters):
        assert game.begun.acquire(timeout=60)
    kills = 0
    while game.thread.is_alive():
        game.thread.join(chance.uniform(0.5, 3.0))
        if kills == 2:  # once the database, too
            postgres.kill()
            postgres.start()
        wait_for(lambda: bool(nodes.ready()))  # without the database both may have been away
        victim = chance.choice(sorted(nodes.ready()))
        nodes.kill(victim)
        nodes.start(victim)
        kills += 1
    assert kills > 3
    assert len(game.found) == counters
    for heard, result in game.found:
        assert result == str(rounds)
        assert [one.split()[:2] for one in heard] == [
            [str(number), str(number + 1)] for number in range(rounds)
        ]
        assert heard == game.found[0][0]


@pytest.mark.nightly
def test_a_node_without_the_database_gives_its_instances_up(
    nodes: Nodes, client: Client, postgres: Postgres
) -> None:
    with Wire(postgres.socket) as way:
        nodes.start("cut", database=way.to(nodes.database))
        nodes.kill("n1")
        nodes.kill("n2")
        wait_for(lambda: nodes.ready() == {"cut"})
        instance, heard = launched(client, "cut", 3), list[str]()
        play(instance, 1, heard)
        before = instance.node
        assert before == "cut.1"
        nodes.start_all({"n1": {}, "n2": {}})
        way.cut()
        play(instance, 2, heard)
        assert instance.node != before
        assert instance.result() == "3"
        way.mend()
    assert [int(one.split()[1]) for one in heard] == [1, 2, 3]
    nodes.kill("cut")


def test_one_without_a_database_refuses_by_name() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="pie-") as folder,
        Nodes(Path(folder), "", ("ann",)) as nodes,
    ):
        nodes.start("n1")
        with Client(nodes.gateway, key=nodes.key("ann"), patience=PATIENCE_SECONDS) as client:
            client.upload(COUNT.encode(), name="count")
            with pytest.raises(RpcError, match=r"server\.store\.database in cluster\.toml"):
                launched(client, "none", 1)
