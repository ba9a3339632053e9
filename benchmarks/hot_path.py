"""`hot-path`: `pie-py bench hot-path` for programs in both languages; it accepts new numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.programs import bench_programs
from pie_py.bench.hot_path import ACCEPTED, counted, hot_path
from pie_py.bench.report import Report
from pie_py.config.model import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Calls of functions for one token: a ratio that no other work on the machine changes."""

    model: ModelConfig = options.model()
    languages: tuple[str, ...] = options.languages()
    at_once: tuple[int, ...] = options.at_once("1,8,32")
    functions: int = options.count(
        "--functions", 0, "How many of the most called functions to name.", least=0
    )
    limit: float = options.real("--limit", 1.1, "Highest ratio to the accepted numbers.")
    save: bool = options.option("--save", is_flag=True, help="Accept these numbers.")


def count(settings: Settings, progress: Progress) -> Report:
    """Counts calls in a server of its own."""
    found = counted(settings.model, bench_programs(settings.languages), settings.at_once)
    report = hot_path(settings.model, found, settings.limit)
    for case, calls in found.items():
        most = sorted(calls, key=lambda name: -calls[name])[: settings.functions]
        report.notes += [f"{' '.join(map(str, case))}: {name}: {calls[name]:.2f}" for name in most]
    if settings.save:
        accepted = json.loads(ACCEPTED.read_text())
        for language, at_once, process, total, *_ in report.rows:
            accepted[f"{language} {at_once} {process}"] = round(total, 1)
        ACCEPTED.write_text(json.dumps(accepted, indent=2) + "\n")
    return report


BENCHMARK = Benchmark(Settings, count)
