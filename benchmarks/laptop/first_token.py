"""Seconds from a command to its first token: the first time ever, cold, and with a server there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.benchmark import Progress
from benchmarks.laptop.sides import transformers_command
from benchmarks.peers import PeerFailed
from pie_py.bench.report import Goal, Report
from pie_py.bench.server import bench_server
from pie_py.config.model import ModelConfig

PROMPT = "The capital of France is"
GOALS = {"first time ever": 4.0, "cold": 2.5, "server there": 0.3}
NOT_KEPT = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")  # a user's, like HOME


def table(
    model: str,
    starts: int,
    python: str,
    llama: list[str] | None,
    transformers: bool,
    progress: Progress,
) -> Report:
    """Measures each so many times, in turns; the least counts. `python` has pie_py; `llama` is the
    command of llama.cpp, if it is there.
    """
    program = ["text_completion", "--prompt", PROMPT, "--max-tokens", "8"]
    run = [python, "-m", "pie_py", "run"]
    own = [*run, "--model", model, *program]
    found: dict[str, dict[str, list[float]]] = {}

    def note(side: str, when: str, seconds: float) -> None:
        found.setdefault(side, {}).setdefault(when, []).append(seconds)
        progress(f"start of {side}, {when}")

    for _ in range(starts):
        with tempfile.TemporaryDirectory(prefix="pie-") as home:
            new = {name: value for name, value in os.environ.items() if name not in NOT_KEPT}
            new["HOME"] = home
            for when in ("first time ever", "cold"):
                note("pie_py", when, seconds_to_first(own, new))
        with bench_server(ModelConfig(source=model)) as server:
            there = [*run, "--endpoint", server.endpoint, *program]
            seconds_to_first(there, os.environ)  # what it compiles, it keeps
            note("pie_py", "server there", seconds_to_first(there, os.environ))
        if llama is not None:
            note("llama.cpp", "cold", seconds_to_first([*llama, "--first", PROMPT], os.environ))
        if transformers:
            command = transformers_command(model, "bfloat16")
            command += ["--first", json.dumps([1, 2, 3])]
            note("transformers", "cold", seconds_to_first(command, os.environ))
    rows: list[list[Any]] = [
        [side, *(min(times[when]) if when in times else None for when in GOALS)]
        for side, times in found.items()
    ]
    report = Report("Seconds from the command to its first token", ["", *GOALS], rows)
    report.notes.append(f"The least of {starts}. The first time ever: with a new home.")
    if python != sys.executable:
        report.notes.append("pie_py: from its wheel.")
    report.goals = [
        Goal(f"seconds to the first token, {when}", figure, limit)
        for (when, limit), figure in zip(GOALS.items(), rows[0][1:], strict=True)
    ]
    return report


def seconds_to_first(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Until the first byte on standard output.

    Raises:
        PeerFailed: if nothing comes.
    """
    with tempfile.TemporaryFile("w+") as log:
        begin = time.perf_counter()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=environment, cwd=Path.home()
        ) as process:
            assert process.stdout is not None
            first = process.stdout.read(1)
            seconds = time.perf_counter() - begin
            process.stdout.read()
        if not first:
            log.seek(0)
            words = log.read().strip().splitlines()[-5:]
            raise PeerFailed("\n    ".join([f"{' '.join(command[:4])} has ended:", *words]))
    return seconds
