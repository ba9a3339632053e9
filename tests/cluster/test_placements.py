"""A gateway that places launches itself: real processes, and nodes that only report."""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
import zmq
from cluster.messages import join, report
from support.child_processes import ChildProcess
from support.clusters import SERVER

from pie_cluster.machines.token import free_ports
from pie_cluster.wire.messages import Renewed, decode_told, encode
from pie_cluster.wire.sockets import member_dealer
from pie_py.client import Client

REPORT_SECONDS = 0.1
ANSWER_SECONDS = 0.4  # of a gateway that asks nobody; one that asks waits for the directory
PROGRAM = b"async def main(args): pass"


class Reporter:
    """What a directory sees of a node."""

    def __init__(self, directory: str, name: str) -> None:
        self._directory, self._name = directory, name
        self._join = join(name, most_instances=1 << 20, pool_tokens=1 << 40)  # never full
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """It falls silent."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with zmq.Context() as context, member_dealer(context, self._directory, None) as dealer:
            number: int | None = None  # of the last report; None: it has to join
            while not self._stop.wait(REPORT_SECONDS):
                message = self._join if number is None else report(number + 1, self._name)
                try:
                    dealer.send(encode(message), zmq.NOBLOCK)
                except zmq.Again:  # no directory
                    continue
                number = 0 if number is None else number + 1
                while dealer.poll(0):
                    if not isinstance(decode_told(dealer.recv()), Renewed):
                        number = None


class World:
    """A directory, a gateway, nodes n1 and n2."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._endpoint = f"tcp://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
        self.directory = self.start_directory()
        config: dict[str, Any] = {
            **SERVER,
            "endpoint": "tcp://127.0.0.1:*",
            "data_folder": str(folder / "data"),
            "extension": {
                "name": "cluster",
                "settings": {"directory": self._endpoint, "policy": "random"},
            },
            "max_instances": 1,
            "spare_instances": 0,
        }
        gateway = ChildProcess("pie_cluster.gateway", config, folder / "gateway.log")
        self.gateway = stack.enter_context(gateway).endpoint
        self.nodes = {name: Reporter(self._endpoint, name) for name in ("n1", "n2")}
        for node in self.nodes.values():
            stack.callback(node.stop)

    def start_directory(self) -> ChildProcess:
        """Starts one, at the address of the one before."""
        config = {"endpoint": self._endpoint, "folder": str(self._folder)}
        log = self._folder / "directory.log"
        directory = ChildProcess("pie_cluster.directory", config, log)
        self._stack.callback(directory.process.wait)
        self._stack.callback(directory.process.kill)
        return directory

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The directory stands still."""
        self.directory.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.directory.process.send_signal(signal.SIGCONT)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def asked(world: World, act: Callable[[Client], Awaitable[None]]) -> None:
    async def run() -> None:
        async with Client(world.gateway) as client:
            await client.upload(PROGRAM, name="program")
            await act(client)

    anyio.run(run)


async def place(client: Client) -> str | None:
    """The node that a launch may go to; None if that is not told soon."""
    with anyio.move_on_after(ANSWER_SECONDS):
        there = await client._connected.request("place", program="program", near=None)
        return str(there["node"])
    return None


async def own_places(client: Client, world: World) -> set[str | None]:
    """Where the gateway sends launches without asking; None if it has to ask."""
    places: set[str | None] = set()
    with world.stopped():
        for _ in range(20):
            places.add(await place(client))
            if None in places:
                break
    return places


async def until_places(client: Client, world: World, *lives: str) -> None:
    while await own_places(client, world) != set(lives):
        await anyio.sleep(ANSWER_SECONDS)


def test_launches_are_placed_while_the_directory_stands_still(world: World) -> None:
    async def act(client: Client) -> None:
        await until_places(client, world, "n1.1", "n2.1")
        with world.stopped():
            while await place(client) is not None:  # until what is known is too old
                await anyio.sleep(ANSWER_SECONDS)
            assert await place(client) is None
        await until_places(client, world, "n1.1", "n2.1")

    asked(world, act)


def test_a_silent_node_is_sent_no_launches(world: World) -> None:
    async def act(client: Client) -> None:
        await until_places(client, world, "n1.1", "n2.1")
        world.nodes["n1"].stop()
        await until_places(client, world, "n2.1")
        assert "n1.1" not in await own_places(client, world)

    asked(world, act)


def test_a_drained_node_is_sent_no_launches(world: World) -> None:
    async def act(client: Client) -> None:
        await until_places(client, world, "n1.1", "n2.1")
        await client._connected.request("drain", node="n1", seconds=60)
        await until_places(client, world, "n2.1")
        assert "n1.1" not in await own_places(client, world)

    asked(world, act)


def test_a_directory_that_is_started_again_is_followed(world: World) -> None:
    async def act(client: Client) -> None:
        await until_places(client, world, "n1.1", "n2.1")
        world.directory.process.kill()
        world.directory.process.wait()
        world.directory = world.start_directory()
        await until_places(client, world, "n1.1", "n2.1")

    asked(world, act)
