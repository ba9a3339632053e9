"""The phases of the benchmark for GPUs, each to its end. Their figures say nothing."""

from __future__ import annotations

import json
import sys

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
    printed = capsys.readouterr().out
    assert printed.strip()
    assert '"error"' not in printed
