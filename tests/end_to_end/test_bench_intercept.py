"""`pie-py bench intercept` runs and prints what it promises; its figures are for people to judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pie_py.bench.intercept_load import KINDS, jobs


def bench(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "pie_py", "bench", "intercept", *arguments, "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert all(len(row) == len(report["columns"]) for row in report["rows"])
    return report


def test_simulated(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    arguments = ["--sim-requests", "12", "--sim-rates", "1,4", "--plot", str(plot)]
    report = bench("--part", "simulated", *arguments)
    names = [row[0] for row in report["rows"]]
    assert names == ["vllm", "discard", "preserve", "swap", "min-waste"] * 2
    assert all(row[2] > 0 and row[4] > 0 for row in report["rows"])
    assert "<svg" in plot.read_text()


@pytest.mark.slow
def test_real(checkpoint: Path) -> None:
    scales = ["--time-scale", "0.01", "--token-scale", "0.05", "--kv-pages", "24"]
    sides = ["--system", "vllm", "--system", "min-waste", "--system", "unaware"]
    size = ["--requests", "4", "--rates", "20", "--model", str(checkpoint)]
    report = bench("--part", "real", *size, *scales, *sides)
    assert [row[0] for row in report["rows"]] == ["vllm", "min-waste", "unaware"]
    restarted = report["columns"].index("restarted")
    assert all(row[4] > 0 for row in report["rows"])
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
