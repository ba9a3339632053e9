"""`pie-py bench hot-path`: calls of functions, of Python and of C, that one token takes in each
process.

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
from pathlib import Path
from typing import NamedTuple

import anyio

from pie_py.bench.decoding import decode_in
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config.model import EMBEDDED_MODEL, ModelConfig
from pie_py.config.plugins import ObserverConfig

# Calls per token, by case; of the embedded model in 8 bits.
ACCEPTED = Path(__file__).parent / "hot_path.json"
PROGRAM = Path(__file__).parent / "guests" / "decode.py"
PROCESSES = ("control", "worker")
OURSELVES = ("bench/call_counts.py", "_lsprof")
OBSERVER = "pie_py.bench.call_counts:count_calls"
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
    programs: Mapping[str, bytes],
    at_once: Sequence[int],
    *,
    prompt: int = 64,
    tokens: int = 256,
    functions: int = 0,
    limit: float = 1.1,
) -> Report:
    """Counts calls in a server of its own.

    Args:
        model: that it serves.
        programs: the benchmarks' inferlet by its language.
        at_once: how many decode together, one count after the other.
        prompt: tokens of each prompt.
        tokens: that each generates.
        functions: how many of the most called ones are named.
        limit: the highest ratio to the accepted numbers.
    """
    if model.source == EMBEDDED_MODEL:
        # Whether weights of 16 bits run in one call for all layers depends on the CPU.
        model = model.model_copy(update={"quantize": "int8"})
    accepted = json.loads(ACCEPTED.read_text()) if model.source == EMBEDDED_MODEL else {}
    report = Report(
        "Calls of functions for one token",
        ["function", "guest", "at once", "process", "calls per token", "accepted", "ratio"],
        notes=["Of Python and of C; accepted numbers are of the embedded model in 8 bits."],
    )
    for (language, count, process), calls in _counted(
        model, programs, at_once, prompt, tokens
    ).items():
        case = f"{language} {count} {process}"
        total, before = sum(calls.values()), accepted.get(case)
        ratio = None if before is None else total / before
        report.rows.append([ALL, language, count, process, total, before, ratio])
        if ratio is not None:
            report.goals.append(Goal(f"calls over those accepted, {case}", ratio, limit))
        most = sorted(calls.items(), key=lambda item: -item[1])[:functions]
        report.rows += [
            [name, language, count, process, number, None, None] for name, number in most
        ]
    return report


def _counted(
    model: ModelConfig,
    programs: Mapping[str, bytes],
    at_once: Sequence[int],
    prompt: int,
    tokens: int,
) -> dict[tuple[str, int, str], dict[str, float]]:
    """Calls a token by language, count and process."""
    windows: dict[tuple[str, int], tuple[int, int]] = {}
    room = with_room(model, max(at_once), prompt + tokens)
    with tempfile.TemporaryDirectory(prefix="pie-") as name:
        folder = Path(name)
        with bench_server(
            room, observer=ObserverConfig(observer=OBSERVER, folder=folder)
        ) as served:
            for (language, program), count in itertools.product(programs.items(), at_once):
                found = anyio.run(decode_in, served.endpoint, program, count, prompt, tokens)
                windows[language, count] = found.window
        # The processes have written their counts when they ended.
        files = {process: (folder / f"{process}.json").read_text() for process in PROCESSES}
    return {
        (*case, process): calls_a_token([Count(*one) for one in json.loads(text)], window)
        for case, window in windows.items()
        for process, text in files.items()
    }
