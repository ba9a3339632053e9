"""`pie-py bench async` runs and prints what it promises; its figures are for people to judge."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from random import Random
from typing import Any

import pytest

from pie_py.bench.async_calls import formulas
from pie_py.bench.async_calls.drawn import WORKLOADS, draw, draw_seconds
from pie_py.bench.async_calls.jobs import Job, PlannedCall, judge

SIDES = ["sync", "sync_parallel", "async_naive", "async"]


def bench(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pie_py", "bench", "async", *arguments, "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    reports: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    for report in reports:
        assert all(len(row) == len(report["columns"]) for row in report["rows"])
    return reports


@pytest.mark.slow
def test_the_model_decides_and_calls_are_forced() -> None:
    tables = bench("--requests", "1", "--longest", "1", "--workload", "interrupts")
    decided, _, forced, cost = tables
    assert [row[0] for row in decided["rows"]] == SIDES
    expected = len(draw("interrupts", 1, 0, 1).calls)
    for row in decided["rows"]:
        right, missing = row[2], row[4]
        assert right + missing == expected
    assert "FORCED" in forced["title"]
    assert "FORCED" in forced["notes"][0]
    assert [row[0] for row in forced["rows"]] == [f"{s}, lpt" for s in SIDES] + ["async, random"]
    for row in forced["rows"]:
        assert row[1:5] == [1, expected, 0, 0]
        assert row[5] > 400  # no side is done before the last task has come
        assert row[7] > 0
    recomputed = cost["columns"].index("recomputed")
    again = {row[0]: row[recomputed] for row in cost["rows"]}
    assert again["async_naive, lpt"] > 0 == again["sync, lpt"]


def test_jobs() -> None:
    for workload in WORKLOADS:
        jobs = [draw(workload, 1, number) for number in range(50)]
        assert jobs == [draw(workload, 1, number) for number in range(50)]
        for job in jobs:
            names = {tool["name"] for tool in job.tools}
            assert {call.name for call in job.calls} <= names
            assert len({call.identifier for call in job.calls}) == len(job.calls)
            chains = {call.identifier[0] for call in job.calls}
            assert workload == "parallel" or len(chains) == 3
            assert workload != "parallel" or not any(call.after for call in job.calls)
            assert len(job.tasks) == (3 if workload == "interrupts" else 1)
            assert sum(len(part.calls) for part in job.one_by_one()) == len(job.calls)


def test_times_of_functions() -> None:
    random = Random(1)
    times = [draw_seconds(random) for _ in range(20_000)]
    assert min(times) >= 0.03
    assert max(times) <= 0.5
    assert statistics.mean(times) == pytest.approx(0.11, abs=0.003)


def call(identifier: str, name: str, after: tuple[str, ...] = (), **given: Any) -> PlannedCall:
    return PlannedCall(identifier, name, given, 0.1, after)


def made(text: str, written: float, delivered: float | None = None) -> dict[str, Any]:
    return {"call": text, "written": written, "delivered": delivered}


def test_what_is_right() -> None:
    job = Job(("",), (call("a1", "f", x='q"'), call("a2", "g", ("a1",), y=2), call("b1", "h")))
    right = [made(one.text, at, at + 0.5) for at, one in enumerate(job.calls)]
    assert judge(job.calls, right).all_right
    assert not judge(job.calls, right[:2]).all_right
    early = [made(job.calls[0].text, 0, 2), *right[1:]]
    verdicts = {
        "before its argument is there": early,
        "twice": [*right, right[2]],
        "wrong": [*right[:2], made("h(1)", 2)],
        "no call": [*right[:2], made("h(", 2)],
    }
    for why, calls in verdicts.items():
        verdict = judge(job.calls, calls)
        assert verdict.wrong == 1, why
        assert verdict.right + verdict.missing == 3


def test_formulas() -> None:
    generation, execution = [1.0, 2.0, 3.0], [10.0, 30.0, 20.0]
    assert formulas.sync(generation, execution) == 66
    assert formulas.sync_parallel(generation, execution) == 36
    # The longest is generated first, then that of 20, then that of 10.
    assert formulas.asynchronous(generation, execution) == max(2 + 30, 5 + 20, 6 + 10)
