"""Tests that need the simulated GPU: `tests/inference/test_on_simulated_gpu.py` runs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "inference"))  # the worker's rigs
sys.path.insert(0, str(HERE.parent / "gpu"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.has_plugin("simulated_gpu.plugin"):
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="needs `-p simulated_gpu.plugin`"))
