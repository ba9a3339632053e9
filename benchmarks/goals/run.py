"""`goals`: simulated sessions under goals of whole programs, beside first come, first served and
equal turns. All orders are of one user's programs, in the server's own scheduler.

For a while more comes than the worker can do, then no more comes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.goals.policies import ORDERS
from benchmarks.goals.sessions import WORKLOADS, Session, drawn
from benchmarks.goals.simulation import INPUT, ROOM, SEQUENCE, STEP, Simulation, work
from pie_py.bench.report import Goal, Report, percentile

COLUMNS = ["workload", "order", "mean s", "p99 s", "longest s", "mean, of goals", "p99, of goals"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Sessions under goals of whole programs, beside first come and equal turns: their times."""

    load: float = options.real("--load", 1.5, "Work that comes, of what the worker can do.")
    sessions: int = options.count("--sessions", 600, "Of a simulated round.")
    seeds: int = options.count("--seeds", 5, "Rounds of each workload, the same for each order.")


def goals(settings: Settings, progress: Progress) -> Report:
    """Simulates all workloads."""
    progress.expect(len(ORDERS) * len(WORKLOADS) * settings.seeds)
    load = f"{settings.load:g} of what the worker can do comes."
    report = Report("Simulated sessions", COLUMNS, notes=[load])
    report.notes.append(
        f"A step takes {STEP:g} ms, {SEQUENCE:g} for each of at most {ROOM} sequences and"
        f" {INPUT:g} for each token of a prompt; {settings.seeds} × {settings.sessions} sessions."
    )
    for workload in WORKLOADS:
        _add(report, workload, _simulated(settings, progress, workload))
    return report


def _simulated(settings: Settings, progress: Progress, workload: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {order: [] for order in ORDERS}
    for order, policy in ORDERS.items():
        for seed in range(settings.seeds):
            sessions = drawn(workload, seed, settings.sessions)
            sessions = _over(sessions, work(sessions) / settings.load)
            with tempfile.TemporaryDirectory(prefix="pie-") as folder:
                found[order] += Simulation(policy, Path(folder)).run(sessions)
            progress(f"{workload}, {order}")
    return found


def _over(sessions: Sequence[Session], seconds: float) -> list[Session]:
    """The sessions, coming over a time."""
    return [each._replace(at=each.at * seconds) for each in sessions]


def _add(report: Report, workload: str, found: dict[str, list[float]]) -> None:
    """Rows of a workload, and that those of goals are less."""
    figures = {name: (mean(took), percentile(took, 0.99)) for name, took in found.items()}
    for name, own in figures.items():
        of_mean, of_p99 = (a / b for a, b in zip(figures["goals"], own, strict=True))
        report.rows.append([workload, name, *own, max(found[name]), of_mean, of_p99])
        if name != "goals":
            report.goals += [
                Goal(f"{workload}: mean seconds of those with {name}", of_mean, 0.7),
                Goal(f"{workload}: seconds at p99 of those with {name}", of_p99, 1.05),
            ]


BENCHMARK = Benchmark(Settings, goals)
