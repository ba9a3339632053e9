"""Tests that need the simulated GPU: `tests/inference/test_on_simulated_gpu.py` runs them."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.pluginmanager.has_plugin("simulated_gpu.plugin"):
        for item in (each for each in items if Path(__file__).parent in each.path.parents):
            item.add_marker(pytest.mark.skip(reason="needs `-p simulated_gpu.plugin`"))
