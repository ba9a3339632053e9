"""`pie-py bench hot-path`: calls of functions, of Python and of C, that one token takes in each process.

Numbers of calls hardly depend on the machine or on what else it does, unlike times; so they show what makes
the way of a token dearer, as a ratio to the numbers that are kept beside this file. They are no times: a
call may be cheap or dear, and loops within a function do not show.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import anyio

from pie_py.bench.decoding import Decoded, decode_in
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.server import EMBEDDED_MODEL, ModelConfig, TraceConfig

KEPT = Path(__file__).parent / "hot_path.json"  # calls a token, by case; of the embedded model
PROCESSES = ("control", "worker")
OURSELVES = ("wire/trace.py", "/tracing.py", "_lsprof")
ALL = "all"


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


def hot_path(
    model: ModelConfig,
    at_once: Sequence[int],
    languages: Sequence[str],
    prompt: int,
    tokens: int,
    functions: int,
    limit: float,
    save: bool,
    progress: Callable[[str], None],
) -> Report:
    """Counts calls in a server of its own.

    Args:
        functions: how many of the most called ones of each process are told, too.
        limit: the ratio to the kept numbers up to which the goal is met.
        save: whether the numbers are kept, for later runs to be held to.
    """
    programs = bench_programs(languages)
    runs: dict[tuple[str, int], Decoded] = {}
    roomy = with_room(model, max(at_once), prompt + tokens)
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        trace = TraceConfig(folder=Path(folder), kind="calls")
        with bench_server(roomy, trace=trace) as server:
            progress("the server runs")
            for language, program in programs.items():
                for count in at_once:
                    runs[language, count] = anyio.run(
                        decode_in, server.endpoint, program, count, prompt, tokens
                    )
                    progress(f"{language}, {count} at once")
        counts = {process: _read(Path(folder) / f"{process}.json") for process in PROCESSES}
    kept = _kept(model)
    report = Report(
        "Calls of functions for one token",
        ["function", "guest", "at once", "process", "calls a token", "kept", "ratio"],
        notes=["Of Python and of C; what is kept was measured with the embedded model."],
    )
    for (language, count), run in runs.items():
        for process in PROCESSES:
            calls = calls_a_token(counts[process], run.window)
            total = sum(calls.values())
            case = f"{language} {count} {process}"
            before = kept.get(case)
            ratio = None if before is None else total / before
            report.rows.append([ALL, language, count, process, total, before, ratio])
            if ratio is not None:
                report.goals.append(Goal(f"calls over those kept, {case}", ratio, limit))
            most = sorted(calls.items(), key=lambda item: -item[1])[:functions]
            report.rows += [
                [name, language, count, process, number, None, None] for name, number in most
            ]
            kept[case] = round(total, 1)
    if save:
        KEPT.write_text(json.dumps(kept, indent=2) + "\n")
    return report


def _read(file: Path) -> list[Count]:
    return [Count(*count) for count in json.loads(file.read_text())]


def _kept(model: ModelConfig) -> dict[str, float]:
    """Calls a token of every case, if they are this model's."""
    if model.source != EMBEDDED_MODEL or not KEPT.is_file():
        return {}
    numbers: dict[str, float] = json.loads(KEPT.read_text())
    return numbers
