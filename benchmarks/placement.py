"""`placement`: what the directory of a cluster takes for a decision and for a report.

One process, no socket. Each decision is a whole one: the key, the policy, and the table's update.
Reports come from nodes in turn, as frames, and are answered as frames.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from pie_cluster.directory.directory import Directory, PlacementRequest
from pie_cluster.directory.policies import POLICIES
from pie_cluster.wire.messages import (
    CLUSTER_PROTOCOL,
    Join,
    Load,
    Renewed,
    decode_to_directory,
    encode,
)
from pie_cluster.wire.messages import Report as NodeReport
from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.report import Goal, Report

REPORTS_PER_SECOND = 2 * 2000  # 2 000 nodes, twice per second each
HINTS = 4  # changes of caches in a report
SENDER = b"bench"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The directory of a cluster alone: microseconds of decisions and of reports."""

    nodes: tuple[int, ...] = options.number_list("--nodes", "100,2000,10000")
    launches: int = options.count("--launches", 5000, "Decisions of a round.")
    users: int = options.count("--users", 20, "Users per node.")
    rounds: int = options.rounds(5)


def placement(settings: Settings, progress: Progress) -> Report:
    """Measures both at each number of nodes."""
    progress.expect(len(settings.nodes))
    report = Report(
        "The directory of a cluster, one core",
        ["nodes", "random, µs", "two-choices, µs", "cached, µs", "report, µs"],
        notes=[f"CPU time per decision or report, medians of {settings.rounds} rounds."],
    )
    for nodes in settings.nodes:
        decisions = [_decision(settings, nodes, name) for name in ("random", "two-choices")]
        ours = _decision(settings, nodes, "cached")
        report_us = _report(settings, nodes)
        report.rows.append([nodes, *decisions, ours, report_us])
        report.goals.append(Goal(f"{nodes} nodes: µs of a decision", ours, 20))
        if nodes == 2000:
            share = report_us * REPORTS_PER_SECOND / 1e6
            what = "2000 nodes that report twice per second: share of a core, without sockets"
            report.goals.append(Goal(what, share, 0.2))
        progress(f"{nodes} nodes")
    return report


def _directory(nodes: int, policy: str) -> Directory:
    directory = Directory(POLICIES[policy], Random(1), 0.0)
    for number in range(nodes):
        join = Join(f"n{number}", 1, CLUSTER_PROTOCOL, "bench", "", "", 1 << 40, 1 << 50, 1 << 40)
        directory.join(join, SENDER, 0.0)
    return directory


def _decision(settings: Settings, nodes: int, policy: str) -> float:
    """Microseconds of a decision: few of the users come often (Zipf)."""
    directory = _directory(nodes, policy)
    random = Random(2)

    def user() -> str:
        return f"user-{int((settings.users * nodes) ** random.random())}"

    def one_round() -> None:
        for place in places:
            directory.place(place, 0.0)

    places = [PlacementRequest(user(), "program") for _ in range(settings.launches)]
    return _median(one_round, settings.rounds) / settings.launches


def _report(settings: Settings, nodes: int) -> float:
    """Microseconds of a report, which changes the load and some hints."""
    directory = _directory(nodes, "cached")
    random = Random(3)
    numbers = dict.fromkeys(range(nodes), 0)

    def frames() -> list[bytes]:
        made = []
        for count in range(settings.launches):
            node = count % nodes
            numbers[node] += 1
            cached = [(random.getrandbits(63), 2048) for _ in range(HINTS)]
            load = Load(random.randrange(900), random.randrange(1 << 40), random.randrange(1 << 49))
            made.append(encode(NodeReport(f"n{node}", 1, numbers[node], load, cached)))
        return made

    rounds = iter([frames() for _ in range(settings.rounds + 1)])

    def one_round() -> None:
        for frame in next(rounds):
            message = decode_to_directory(frame)
            assert isinstance(message, NodeReport)
            answer = directory.report(message, SENDER, 0.0)
            assert isinstance(answer, Renewed)
            encode(answer)

    return _median(one_round, settings.rounds) / settings.launches


def _median(one_round: Callable[[], None], rounds: int) -> float:
    """Microseconds of CPU time; a first round warms up."""
    found = []
    for _ in range(rounds + 1):
        begin = time.process_time_ns()
        one_round()
        found.append((time.process_time_ns() - begin) / 1000)
    return statistics.median(found[1:])


BENCHMARK = Benchmark(Settings, placement)
