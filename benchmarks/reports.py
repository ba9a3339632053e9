"""`reports`: what nodes that report cost the directory of a cluster, and the gateway.

Both are real processes, and reports come by sockets, evenly over time, from each node twice per
second. The directory's share is taken without a gateway, and beside one that it passes them on to.
"""

from __future__ import annotations

import json
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
    """The directory's and the gateway's share of a core while many nodes report."""

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
def _started(module: str, config: str, folder: Path) -> Iterator[tuple[str, int]]:
    """A process that serves: its endpoint and its identifier."""
    options = ("--with-parent", "--config", config)
    with Child(module, *options, log=folder / "log") as child:
        report = child.next_line(START_SECONDS)
        assert report is not None, f"{module} does not start"
        yield report["endpoint"], child.pid


def _shares(nodes: _Nodes, settings: Settings, pids: list[int]) -> list[float]:
    """Of a core, of each process; medians of rounds."""
    found = []
    for _ in range(settings.rounds):
        begin = time.monotonic()
        before = [cpu_seconds(pid) for pid in pids]
        nodes.report(settings.seconds)
        took = time.monotonic() - begin
        found.append([(cpu_seconds(p) - b) / took for p, b in zip(pids, before, strict=True)])
    return [statistics.median(each) for each in zip(*found, strict=True)]


def reports(settings: Settings, progress: Progress) -> Report:
    """Measures both."""
    progress.expect(2)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pie-")))
        told = json.dumps({"endpoint": "tcp://127.0.0.1:*", "folder": str(folder)})
        module = "pie_cluster.directory"
        endpoint, directory = stack.enter_context(_started(module, told, folder))
        nodes = _Nodes(endpoint, settings, stack.enter_context(zmq.Context()))
        nodes.report(1)
        (alone,) = _shares(nodes, settings, [directory])
        progress("the directory alone")
        config = ServerConfig.model_validate(
            {
                "models": [{"source": str(MODEL)}],
                "endpoint": "tcp://127.0.0.1:*",
                "data_folder": folder / "data",
                "extension": MemberConfig(directory=endpoint).extension(),
            }
        )
        module = "pie_cluster.gateway"
        _, gateway = stack.enter_context(_started(module, config.model_dump_json(), folder))
        nodes.report(2)
        beside, follows = _shares(nodes, settings, [directory, gateway])
        progress("beside a gateway")
    return Report(
        f"{settings.nodes} nodes that report twice per second, share of a core",
        ["", "directory", "gateway"],
        [["without a gateway", alone, None], ["beside one", beside, follows]],
        [f"CPU time, medians of {settings.rounds} rounds, {settings.connections} connections."],
        [Goal("share of a core of the directory, beside a gateway", beside, 0.2)],
    )


BENCHMARK = Benchmark(Settings, reports)
