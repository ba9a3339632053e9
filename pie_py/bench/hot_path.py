"""`pie-py bench hot-path`: calls of functions, of Python and of C, that one token takes in each
process.

Numbers of calls hardly depend on the machine or on what else it does, unlike times; so they show
what makes the path of a token more expensive, as a ratio to the accepted numbers in the file beside
this one. They are not times: a call may be cheap or expensive, and loops within a function do not
show.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import anyio

from pie_py.bench import options
from pie_py.bench.benchmark import Benchmark, Progress
from pie_py.bench.decoding import Decoded, decode_in
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.model import EMBEDDED_MODEL, ModelConfig
from pie_py.config.plugins import ObserverConfig

# Calls per token, by case; of the embedded model in 8 bits.
ACCEPTED = Path(__file__).parent / "hot_path.json"
PROCESSES = ("control", "worker")
OURSELVES = ("bench/observed.py", "bench/call_counts.py", "_lsprof")
ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Calls of functions for one token: a ratio that no other work on the machine changes."""

    model: ModelConfig = options.model()
    languages: tuple[str, ...] = options.languages()
    at_once: tuple[int, ...] = options.at_once("1,8,32")
    prompt: int = options.prompt()
    tokens: int = options.tokens(256)
    functions: int = options.count(
        "--functions", 0, "How many of the most called functions to name.", least=0
    )
    limit: float = options.real("--limit", 1.1, "Highest ratio to the accepted numbers.")
    save: bool = options.option("--save", is_flag=True, help="Keep these numbers for later runs.")


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


def hot_path(settings: Settings, progress: Progress) -> Report:
    """Counts calls in a server of its own."""
    progress.expect(1 + len(settings.languages) * len(settings.at_once))
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        runs = _decode(settings, Path(folder), progress)
        counts = {process: _read(Path(folder) / f"{process}.json") for process in PROCESSES}
    accepted = _accepted(settings.model)
    report = Report(
        "Calls of functions for one token",
        ["function", "guest", "at once", "process", "calls per token", "accepted", "ratio"],
        notes=["Of Python and of C; accepted numbers are of the embedded model in 8 bits."],
    )
    found = dict(accepted)
    for (language, count), run in runs.items():
        for process in PROCESSES:
            calls = calls_a_token(counts[process], run.window)
            case = f"{language} {count} {process}"
            total, before = sum(calls.values()), accepted.get(case)
            ratio = None if before is None else total / before
            report.rows.append([ALL, language, count, process, total, before, ratio])
            if ratio is not None:
                report.goals.append(
                    Goal(f"calls over those accepted, {case}", ratio, settings.limit)
                )
            most = sorted(calls.items(), key=lambda item: -item[1])[: settings.functions]
            report.rows += [
                [name, language, count, process, number, None, None] for name, number in most
            ]
            found[case] = round(total, 1)
    if settings.save:
        ACCEPTED.write_text(json.dumps(found, indent=2) + "\n")
    return report


def _decode(settings: Settings, folder: Path, progress: Progress) -> dict[tuple[str, int], Decoded]:
    """Runs all cases in one server, whose processes write their counts when they end."""
    programs = bench_programs(settings.languages)
    prompt, tokens = settings.prompt, settings.tokens
    model = with_room(settings.model, max(settings.at_once), prompt + tokens)
    if model.source == EMBEDDED_MODEL:
        # Whether weights of 16 bits run in one call for all layers depends on the CPU.
        model = model.model_copy(update={"quantize": "int8"})
    observer = ObserverConfig(observer="pie_py.bench.call_counts:count_calls", folder=folder)
    runs: dict[tuple[str, int], Decoded] = {}
    with bench_server(model, observer=observer) as server:
        progress("the server runs")
        for language, program in programs.items():
            for count in settings.at_once:
                runs[language, count] = anyio.run(
                    decode_in, server.endpoint, program, count, prompt, tokens
                )
                progress(f"{language}, {count} at once")
    return runs


def _read(file: Path) -> list[Count]:
    return [Count(*count) for count in json.loads(file.read_text())]


def _accepted(model: ModelConfig) -> dict[str, float]:
    """Calls per token of every case, if they are this model's."""
    if model.source != EMBEDDED_MODEL or not ACCEPTED.is_file():
        return {}
    numbers: dict[str, float] = json.loads(ACCEPTED.read_text())
    return numbers


BENCHMARK = Benchmark(Settings, hot_path)
