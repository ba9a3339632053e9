"""The benchmarks run and print what they promise; their figures are for people to judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rust_components import use_toolchain


def bench(*arguments: str) -> dict[str, Any]:
    use_toolchain()
    done = subprocess.run(
        [sys.executable, "-m", "pie_py", "bench", *arguments, "--json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert all(len(row) == len(report["columns"]) for row in report["rows"])
    return report


@pytest.mark.slow
def test_launch(checkpoint: Path) -> None:
    report = bench("launch", "--at-once", "1,3", "--rounds", "1", "--model", str(checkpoint))
    assert [row[:2] for row in report["rows"]] == [
        ["rust", 1],
        ["rust", 3],
        ["python", 1],
        ["python", 3],
    ]
    assert all(figure > 0 for row in report["rows"] for figure in row[2:])


@pytest.mark.slow
def test_calls(checkpoint: Path) -> None:
    report = bench("calls", "--live", "1,5", "--count", "1000", "--model", str(checkpoint))
    calls = {"monotonic-now", "instance-id", "kvpage-used", "pool-stats"}
    assert {row[2] for row in report["rows"]} == calls
    assert len(report["rows"]) == 2 * 2 * len(calls)


@pytest.mark.slow
def test_completion(checkpoint: Path) -> None:
    report = bench(
        *("completion", "--at-once", "1,4", "--rounds", "1", "--prompt", "8", "--tokens", "8"),
        *("--model", str(checkpoint)),
    )
    assert [row[0] for row in report["rows"]] == [1, 4]
    assert report["columns"] == [
        *("at once", "ideal loop", "pie_py, rust", "ratio", "pie_py, python", "ratio")
    ]
