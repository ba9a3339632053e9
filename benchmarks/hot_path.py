"""`hot-path`: calls of functions, of Python and of C, that one token takes in each process.

Numbers of calls hardly depend on the machine or on what else it does, unlike times; so they show
what makes the path of a token more expensive, as a ratio to the accepted numbers in the file beside
this one. They are not times: a call may be cheap or expensive, and loops within a function do not
show.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

import anyio

from benchmarks import options
from benchmarks.benchmark import Benchmark, Progress
from benchmarks.programs import bench_programs
from pie_py.bench.decoding import decode_in
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.model import EMBEDDED_MODEL, ModelConfig
from pie_py.config.plugins import ObserverConfig

# Calls per token, by case; of the embedded model in 8 bits.
ACCEPTED = Path(__file__).parent / "hot_path.json"
PROCESSES = ("control", "worker")
OURSELVES = ("benchmarks/call_counts.py", "_lsprof")
OBSERVER = "benchmarks.call_counts:count_calls"
PROMPT, TOKENS = 64, 256  # of each program

Counted: TypeAlias = dict[tuple[str, int, str], dict[str, float]]


class Count(NamedTuple):
    """All calls of a process by the time it had to do with a plan."""

    plan: int
    at: int
    tokens: int
    calls: dict[str, int]


def calls_a_token(counts: Sequence[Count], window: tuple[int, int]) -> dict[str, float]:
    """Calls of every function for one token of one inferlet, within a window.

    Raises:
        RuntimeError: if there are not two counts in it.
    """
    within = [count for count in counts if window[0] <= count.at <= window[1]]
    if len(within) < 2:
        raise RuntimeError("too few plans to count calls: ask for more --tokens")
    first, last = within[0], within[-1]
    tokens = last.tokens - first.tokens
    return {
        name: (calls - first.calls.get(name, 0)) / tokens
        for name, calls in last.calls.items()
        if not any(own in name for own in OURSELVES)
    }


def counted(model: ModelConfig, programs: Mapping[str, bytes], at_once: Sequence[int]) -> Counted:
    """Calls per token of every function by language, count, process, in a server of its own."""
    if model.source == EMBEDDED_MODEL:
        # Whether weights of 16 bits run in one call for all layers depends on the CPU.
        model = model.model_copy(update={"quantize": "int8"})
    windows: dict[tuple[str, int], tuple[int, int]] = {}
    room = with_room(model, max(at_once), PROMPT + TOKENS)
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        observer = ObserverConfig(observer=OBSERVER, folder=folder)
        with bench_server(room, observer=observer) as server:
            for (language, program), count in itertools.product(programs.items(), at_once):
                found = anyio.run(decode_in, server.endpoint, program, count, PROMPT, TOKENS)
                windows[language, count] = found.window
        # The processes have written their counts when they ended.
        files = {process: (folder / f"{process}.json").read_text() for process in PROCESSES}
    return {
        (*case, process): calls_a_token([Count(*one) for one in json.loads(text)], window)
        for case, window in windows.items()
        for process, text in files.items()
    }


def hot_path(model: ModelConfig, found: Counted, limit: float) -> Report:
    """All calls of a token beside the accepted numbers, and a goal: the highest ratio to them."""
    accepted = json.loads(ACCEPTED.read_text()) if model.source == EMBEDDED_MODEL else {}
    report = Report(
        "Calls of functions for one token",
        ["guest", "at once", "process", "calls per token", "accepted", "ratio"],
        notes=["Of Python and of C; accepted numbers are of the embedded model in 8 bits."],
    )
    for (language, count, process), calls in found.items():
        case = f"{language} {count} {process}"
        total, before = sum(calls.values()), accepted.get(case)
        ratio = None if before is None else total / before
        report.rows.append([language, count, process, total, before, ratio])
        if ratio is not None:
            report.goals.append(Goal(f"calls over those accepted, {case}", ratio, limit))
    return report


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
