"""`reports`: what nodes that report cost the gateway of a cluster, where the directory is.

It is a real process, and reports come by sockets, evenly over time, from each node twice per
second.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import zmq

from pie_cluster.config import MemberConfig
from pie_cluster.machines.token import free_ports
from pie_cluster.wire.messages import CLUSTER_PROTOCOL, Join, Load, Renewed, decode_told, encode
from pie_cluster.wire.messages import Report as NodeReport
from pie_cluster.wire.sockets import member_dealer
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import cpu_seconds
from pie_py.config.processes import Child
from pie_py.config.server import ServerConfig
from pie_py.wire.zmq_socket import has_input

MODEL = Path(__file__).parents[1] / "inference/pie_inference/embedded/pie-tiny"
HINTS = 4  # changes of caches in a report
TURN_SECONDS = 0.002  # between two turns of the nodes
START_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The gateway's share of a core while many nodes report to its directory."""

    nodes: int = options.count("--nodes", 2000, "That report twice per second.")
    connections: int = options.count("--connections", 200, "To the directory, of all nodes.")
    seconds: int = options.count("--seconds", 5, "Of a round.")
    rounds: int = options.rounds(3)


class _Nodes:
    """Nodes that report."""

    def __init__(
        self, directory: str, settings: Settings, context: zmq.Context[zmq.Socket[bytes]]
    ) -> None:
        self._dealers = [
            member_dealer(context, directory, None) for _ in range(settings.connections)
        ]
        self._numbers = dict.fromkeys(range(settings.nodes), 0)
        self._random = Random(1)
        self._turn = 0
        for node in self._numbers:
            join = Join(f"n{node}", 1, CLUSTER_PROTOCOL, "bench", "", "", 1000, 1 << 40, 1 << 20)
            self._dealer(node).send(encode(join))  # waits for the connection
        self._take_answers()

    def report(self, seconds: float) -> None:
        """Twice per second each, for so long."""
        begin = time.monotonic()
        sent = 0
        while (passed := time.monotonic() - begin) < seconds:
            while sent < 2 * passed * len(self._numbers):
                self._report_one(self._turn % len(self._numbers))
                self._turn += 1
                sent += 1
            self._take_answers()
            time.sleep(TURN_SECONDS)

    def _report_one(self, node: int) -> None:
        random = self._random
        self._numbers[node] += 1
        cached = [(random.getrandbits(63), 2048) for _ in range(HINTS)]
        load = Load(random.randrange(900), random.randrange(1 << 20), random.randrange(1 << 39))
        message = NodeReport(f"n{node}", 1, self._numbers[node], load, cached)
        self._dealer(node).send(encode(message))

    def _dealer(self, node: int) -> zmq.Socket[bytes]:
        return self._dealers[node % len(self._dealers)]

    def _take_answers(self) -> None:
        for dealer in self._dealers:
            while has_input(dealer):
                assert isinstance(decode_told(dealer.recv()), Renewed)


@contextmanager
def _gateway(folder: Path) -> Iterator[tuple[str, int]]:
    """A gateway: its directory's endpoint, and its process identifier."""
    endpoint = f"tcp://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    config = ServerConfig.model_validate(
        {
            "models": [{"source": str(MODEL)}],
            "endpoint": "tcp://127.0.0.1:*",
            "data_folder": folder / "data",
            "extension": MemberConfig(directory=endpoint, folder=folder).extension(),
        }
    )
    options = ("--with-parent", "--config", config.model_dump_json())
    with Child("pie_cluster.gateway", *options, log=folder / "log") as child:
        assert child.next_line(START_SECONDS) is not None, "the gateway does not start"
        yield endpoint, child.pid


def _share(nodes: _Nodes, settings: Settings, pid: int) -> float:
    """Of a core; the median of rounds."""
    found = []
    for _ in range(settings.rounds):
        begin, before = time.monotonic(), cpu_seconds(pid)
        nodes.report(settings.seconds)
        found.append((cpu_seconds(pid) - before) / (time.monotonic() - begin))
    return statistics.median(found)


def reports(settings: Settings, progress: Progress) -> Report:
    """Measures it."""
    progress.expect(1)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pie-")))
        endpoint, pid = stack.enter_context(_gateway(folder))
        nodes = _Nodes(endpoint, settings, stack.enter_context(zmq.Context()))
        nodes.report(1)
        share = _share(nodes, settings, pid)
        progress("reported")
    return Report(
        f"{settings.nodes} nodes that report twice per second, share of a core",
        ["", "gateway"],
        [["with its directory", share]],
        [f"CPU time, the median of {settings.rounds} rounds, {settings.connections} connections."],
        [Goal("share of a core of the gateway and its directory", share, 0.4)],
    )


BENCHMARK = Benchmark(Settings, reports)
