"""The phases of the benchmark for GPUs, each to its end, with all its figures."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import pytest
import structlog

from benchmarks.gpu.__main__ import main

SIZES = {"graph_batch": 4, "kv_pages": 200}
BATCH = {"embeds": 600, "max_batch_tokens": 512}


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (["decode", "--count", "2", "--context", "40", "--steps", "3"], SIZES | BATCH),
        (["prefill", "--length", "64"], SIZES),
        (["swap", "--count", "2", "--context", "40", "--steps", "3"], SIZES | BATCH),
    ],
)
def test_each_ends_with_figures(
    arguments: list[str],
    sizes: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shape = ["--shape", "toy", "--config", json.dumps(sizes)]
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", *arguments, *shape])
    try:
        assert main() == 0
    finally:
        structlog.reset_defaults()  # it logs to where this test is captured
    numbers = figures(json.loads(capsys.readouterr().out))
    assert len(numbers) >= 3
    assert all(map(math.isfinite, numbers))
    assert sum(numbers) > 0


def figures(found: Any) -> list[float]:
    """All numbers of a phase, none of which is an error."""
    if isinstance(found, dict):
        assert "error" not in found, found
        found = [*found.values()]
    if isinstance(found, list):
        return [number for each in found for number in figures(each)]
    return [found] if isinstance(found, int | float) else []
