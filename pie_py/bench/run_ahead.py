"""`pie-py bench run-ahead`: generations that queue their next steps before a token is known, on and off.

The gain is what the worker would have waited between two steps (xLLM's bubble), so it shows where steps are
short: with the checkpoint `tiny`. The tokens are the same either way.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import anyio

from pie_py.bench.decoding import STEP_BY_STEP, decode_in
from pie_py.bench.programs import bench_programs
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server, with_room
from pie_py.config import ModelConfig

GOAL = 1.17  # throughput on over off, where steps are short (xLLM)


def run_ahead(
    model: ModelConfig,
    at_once: Sequence[int],
    languages: Sequence[str],
    rounds: int,
    prompt: int,
    tokens: int,
    progress: Callable[[str], None],
) -> Report:
    """Measures generations that run ahead, and the same ones step by step, in turns."""
    programs = bench_programs(languages)
    rates: dict[tuple[str, int, bool], list[float]] = {}
    model = with_room(model, max(at_once), prompt + tokens)
    with bench_server(model) as server:
        progress("the server runs")
        for turn in range(-1, rounds):  # the first one warms up
            for language, program in programs.items():
                for count in at_once:
                    for ahead in (True, False):
                        options = () if ahead else (STEP_BY_STEP,)
                        run = anyio.run(
                            decode_in, server.endpoint, program, count, prompt, tokens, *options
                        )
                        if turn >= 0:
                            found = rates.setdefault((language, count, ahead), [])
                            found.append(run.tokens / run.seconds)
                    progress(f"{language}, {count} at once")
    report = Report(
        "Running ahead: tokens a second while all decode",
        ["guest", "at once", "ahead", "step by step", "gain"],
        notes=[f"Medians of {rounds} rounds in turns; {prompt} prompt, {tokens} new tokens."],
    )
    for language in programs:
        for count in at_once:
            on, off = (statistics.median(rates[language, count, a]) for a in (True, False))
            report.rows.append([language, count, on, off, on / off])
            what = f"throughput ahead over step by step, {language}, {count} at once"
            report.goals.append(Goal(what, on / off, GOAL, at_most=False))
    return report
