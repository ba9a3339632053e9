"""`pie-py bench intercept` runs and prints what it promises; its figures are for people to judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pie_py.bench import intercept
from pie_py.bench.intercept_load import KINDS, jobs


def bench(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pie_py", "bench", "intercept", *arguments, "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["environment"]["cores"]
    reports: list[dict[str, Any]] = document["reports"]
    for report in reports:
        assert all(len(row) == len(report["columns"]) for row in report["rows"])
    return reports


def test_simulated(tmp_path: Path) -> None:
    arguments = ["--sim-seconds", "12", "--sim-rates", "1,4", "--plot", str(tmp_path)]
    (report,) = bench("--part", "simulated", *arguments)
    names = [row[0] for row in report["rows"]]
    assert names == ["vllm", "discard", "preserve", "swap", "min-waste"] * 2
    assert all(row[2] > 0 for row in report["rows"])
    assert "<svg" in (tmp_path / "interception.svg").read_text()


@pytest.mark.slow
def test_real(checkpoint: Path) -> None:
    scales = ["--time-scale", "0.01", "--token-scale", "0.05", "--kv-pages", "24"]
    sides = ["--system", "vllm", "--system", "min-waste", "--system", "unaware"]
    size = ["--requests", "4", "--rates", "20", "--model", str(checkpoint)]
    (report,) = bench("--part", "real", *size, *scales, *sides)
    assert [row[0] for row in report["rows"]] == ["vllm", "min-waste", "unaware"]
    restarted = report["columns"].index("restarted")
    assert all(row[report["columns"].index("completed/s")] > 0 for row in report["rows"])
    assert all(row[restarted] == 0 for row in report["rows"][1:])


def test_the_load_is_what_was_asked_for() -> None:
    load = jobs(200, 2.0, 1, most_tokens=2048)
    assert {job.kind for job in load} == {kind.name for kind in KINDS}
    assert load[-1].arrival == pytest.approx(100, rel=0.3)  # Poisson
    assert all(job.longest <= 2048 for job in load)
    assert all(job.parts[-1].seconds == 0 for job in load)
    again = jobs(200, 4.0, 1, most_tokens=2048)
    assert [job.parts for job in again] == [job.parts for job in load]
    quick = jobs(20, 2.0, 1, time_scale=0.1, token_scale=0.1)
    assert all(job.prompt <= 500 for job in quick)


def test_kinds_lie_in_the_ranges_of_the_summary() -> None:
    """3 to 28 calls a request in the mean, calculators below a second, models 20 times longer."""
    assert len(KINDS) == 6
    calls = [kind.calls[0] for kind in KINDS]
    assert round(min(calls)) == 3
    assert round(max(calls)) == 28
    seconds = {kind.name: kind.seconds[0] for kind in KINDS}
    assert seconds["calculator"] < 1
    assert seconds["images"] == pytest.approx(20, rel=0.1)
    assert 10 < seconds["text to speech"] < seconds["images"]


def row(system: str, rate: float, latency: float, completed: float) -> list[Any]:
    return [system, rate, latency, 0.0, 0.0, completed]


def test_the_load_at_the_same_latency() -> None:
    rows = [
        *(row("vllm", 1, 10, 1), row("vllm", 2, 20, 2), row("vllm", 3, 40, 2)),
        *(row("min-waste", 1, 5, 1), row("min-waste", 2, 10, 2), row("min-waste", 3, 40, 3)),
    ]
    told = intercept._same_latency(rows)
    assert told == [
        "At 20 ms a token, twice vllm's at the lowest rate: vllm 2.00/s, min-waste 2.50/s."
    ]
    load, completed = intercept._simulated_goals(rows)
    assert load.figure == pytest.approx(1.25)
    assert not load.met
    assert completed.figure == 1.5
