"""Benchmarks as processes, and what they print as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from support.rust_components import rust_component, use_toolchain

OPERATORS = ("pie_py", "bench")  # `pie-py bench`
OURS = ("benchmarks",)  # `python -m benchmarks`


def bench(*arguments: str, of: tuple[str, ...] = OURS) -> dict[str, Any]:
    """The document that a benchmark prints: of one report, or of several under `reports`.

    The program in Rust that it launches is built once for all of them.
    """
    use_toolchain()
    program = {"PIE_BENCH_PROGRAM": str(rust_component("bench"))}
    done = subprocess.run(
        [sys.executable, "-m", *of, *arguments, "--json"],
        env={**os.environ, **program, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    if of == OURS:
        assert document["environment"]["cores"] == os.cpu_count()
    for report in document.get("reports", [document]):
        assert report["title"]
        assert all(len(row) == len(report["columns"]) for row in report["rows"])
    return document


def table(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a report by the names of the columns."""
    return [dict(zip(report["columns"], row, strict=True)) for row in report["rows"]]
