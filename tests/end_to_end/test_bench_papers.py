"""Benchmarks of single figures of the papers run, and print what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.benchmarks import bench, table

from benchmarks.batching.compare import EAGER, WAITING


def test_calls_per_token() -> None:
    report = bench("api-calls", "--only", "text completion", "--only", "beam search, width 3")
    completion, beams = table(report)
    assert completion["calls a token"] < 1  # a run is one call
    assert completion["tokens"] == 64
    assert beams["tokens"] == 16
    assert beams["inference"] < 17  # the paper's
    assert beams["control"] < 13


@pytest.mark.slow
def test_batching(checkpoint: Path) -> None:
    size = ("--instances", "4", "--tokens", "8", "--rounds", "1", "--model", str(checkpoint))
    report = bench("batching", *size)
    names = [row["policy"] for row in table(report)]
    assert names == [name.replace("_", " ") for name in (EAGER, *WAITING, "adaptive")]
    assert all(row["requests/s"] > 0 for row in table(report))


@pytest.mark.slow
def test_programs_beside_scripts_without_a_prefix_cache() -> None:
    names = ("EBNF decoding", "attention sink", "hierarchical attention", "API agent, cached")
    only = [word for name in names for word in ("--only", name)]
    size = ("--round-trip", "0", "--rounds", "1", "--at-once", "1", "--no-prefix-cache")
    report = bench("inferlets", *only, *size)
    assert "without a prefix cache" in report["title"]
    assert [row["logic"] for row in table(report)] == list(names)
    assert all(row["latency, ×"] > 0 for row in table(report))
