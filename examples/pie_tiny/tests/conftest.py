"""Tests of the training: slow ones all, which CI runs with those of the product."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports PyTorch: threads that share a core wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes depends on what else the machine does.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)
