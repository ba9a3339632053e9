"""Runs tests on the simulated GPU: `pytest -p simulated_gpu.plugin tests/gpu`."""

from __future__ import annotations

import gc

import pytest

from simulated_gpu import driver, interpreted, kernels
from simulated_gpu.device import MEMORY


def pytest_configure(config: pytest.Config) -> None:
    interpreted.install()
    driver.install()
    kernels.install()


def pytest_report_header() -> str:
    return f"simulated GPU of {MEMORY >> 20} MiB: no NVIDIA device is used or measured"


def pytest_collection_finish() -> None:
    gc.freeze()  # to look at all modules again and again would take longer than the tests
