"""`cluster`: what clients of a cluster pay beside those of one server.

One node, the worker that answers at once, loopback. A server without a cluster and the cluster take
turns, a few exchanges each, so that other work on the machine meets both.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from pie_cluster.machines import operate
from pie_cluster.machines.settings import ClusterConfig
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.client import Client, Instance
from pie_py.config.server import ServerConfig
from pie_py.config.server_process import ServerProcess

MODEL = Path(__file__).parents[1] / "inference/pie_inference/embedded/pie-tiny"
WAYS = ("server", "redirect")
NO_PROGRAM = 64 * "0"  # the hash of one that is not there
ECHO = b"""
from inferlet import session


async def main(args):
    session.send("launched")
    while (message := await session.receive()) != "end":
        session.send(message)
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A cluster's placement, launches and messages, by redirect, beside a server's."""

    rounds: int = options.rounds(20)
    echoes: int = options.count("--echoes", 50, "Messages of each way in a round.")
    launches: int = options.count("--launches", 10, "Of each way in a round.")


@dataclass
class Found:
    """Milliseconds by way."""

    requests: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    placements: list[float] = field(default_factory=list)
    launches: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})
    echoes: dict[str, list[float]] = field(default_factory=lambda: {way: [] for way in WAYS})


@contextmanager
def _servers() -> Iterator[tuple[str, str]]:
    """A server, and a cluster of one node: their endpoints."""
    fields: dict[str, Any] = {
        "models": [{"source": str(MODEL)}],
        "worker_module": "benchmarks.instant_worker",
        "stop_seconds": 0,
        "log": {"level": "warning"},
    }
    with tempfile.TemporaryDirectory(prefix="pie-") as name, ExitStack() as stack:
        folder = Path(name)
        alone = {"endpoint": "tcp://127.0.0.1:*", "data_folder": folder / "alone"}
        config = ServerConfig.model_validate({**fields, **alone})
        server = stack.enter_context(ServerProcess(config, folder / "log"))
        cluster = ClusterConfig(
            endpoint="tcp://127.0.0.1:*", nodes=1, folder=folder / "cluster", server=fields
        )
        stack.callback(operate.down, cluster.folder)
        token = operate.up(cluster, lambda text: None)
        yield server.wait_ready(), token.gateway


async def _timed(act: Awaitable[object]) -> float:
    """Milliseconds."""
    begin = time.perf_counter()
    await act
    return (time.perf_counter() - begin) * 1e3


async def _first_message(client: Client) -> float:
    begin = time.perf_counter()
    instance = await client.launch("echo")
    assert await instance.receive() == "launched"
    found = (time.perf_counter() - begin) * 1e3
    await instance.send("end")
    await instance.result()
    return found


async def _echo(instance: Instance) -> None:
    await instance.send("message")
    assert await instance.receive() == "message"


async def _round(
    clients: dict[str, Client],
    instances: dict[str, Instance],
    settings: Settings,
    found: Found,
) -> None:
    for _ in range(settings.echoes):
        for way in WAYS:  # of the server, and of the gateway
            asked = clients[way]._connected.request("has", hash=NO_PROGRAM)
            found.requests[way].append(await _timed(asked))
        # Of a client that is connected already: what a launch asks before it is sent to the node.
        asked = clients["redirect"]._connected.request("place", program="echo", near=None)
        found.placements.append(await _timed(asked))
    for way in WAYS:
        for _ in range(settings.echoes):
            found.echoes[way].append(await _timed(_echo(instances[way])))
    for _ in range(settings.launches):
        for way in WAYS:
            found.launches[way].append(await _first_message(clients[way]))


async def _measure(endpoints: dict[str, str], settings: Settings, progress: Progress) -> Found:
    found = Found()
    async with (
        Client(endpoints["server"]) as server,
        Client(endpoints["cluster"]) as redirect,
    ):
        clients = dict(zip(WAYS, (server, redirect), strict=True))
        instances = {}
        for way, client in clients.items():
            await client.upload(ECHO, name="echo")
            instances[way] = await client.launch("echo")
            assert await instances[way].receive() == "launched"
        await _round(clients, instances, settings, Found())  # warms up
        for number in range(settings.rounds):
            await _round(clients, instances, settings, found)
            progress(f"round {number + 1}")
        for instance in instances.values():
            await instance.cancel()
    return found


def cluster(settings: Settings, progress: Progress) -> Report:
    """Measures both."""
    progress.expect(1 + settings.rounds)
    with _servers() as (server, gateway):
        progress("the server and the cluster run")
        endpoints = {"server": server, "cluster": gateway}
        found = anyio.run(_measure, endpoints, settings, progress)
    request = {way: statistics.median(found.requests[way]) for way in WAYS}
    echo = {way: statistics.median(found.echoes[way]) for way in WAYS}
    launch = {way: statistics.median(found.launches[way]) for way in WAYS}
    placement = statistics.median(found.placements)
    return Report(
        "A cluster of one node beside a server, p50, ms",
        ["", *WAYS],
        [
            ["a request answered at once", *request.values()],
            ["placement", None, placement],
            ["launch to first message", *launch.values()],
            ["a message and its echo", *echo.values()],
        ],
        [
            "Both ways take turns in each round.",
            "A request answered at once is what no placement can be faster than.",
        ],
        [
            Goal("placement, ms", placement, 0.3),
            Goal(
                "launch by redirect beyond a server's, ms",
                launch["redirect"] - launch["server"],
                0.5,
            ),
            Goal("message by redirect over a server's", echo["redirect"] / echo["server"], 1.03),
        ],
    )


BENCHMARK = Benchmark(Settings, cluster)
