"""Benchmarks of single figures of the papers run, and print what they promise."""

from __future__ import annotations

import pytest
from support.benchmarks import bench, table


@pytest.mark.nightly
@pytest.mark.slow
def test_programs_beside_scripts_without_a_prefix_cache() -> None:
    names = ("EBNF decoding", "attention sink", "hierarchical attention", "API agent, cached")
    only = [word for name in names for word in ("--only", name)]
    size = ("--round-trip", "0", "--rounds", "1", "--at-once", "1", "--no-prefix-cache")
    report = bench("inferlets", *only, *size)
    assert "without a prefix cache" in report["title"]
    assert [row["logic"] for row in table(report)] == list(names)
    assert all(row["latency, ×"] > 0 for row in table(report))
