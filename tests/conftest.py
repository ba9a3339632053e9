"""All tests: on one core each, without deadlines, and the files that take longest first."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

# Before anything imports PyTorch, and for all processes that tests start. The suite runs as several
# processes; threads of PyTorch's that wait for each other on cores that another one uses spin, and
# take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes depends on what else the machine does.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

# Those that take more than 20 s go first, so that no process is left with one at the end.
LONGEST = (
    "inference/test_on_simulated_gpu.py",
    "end_to_end/test_bench.py",
    "conformance/test_bad_input.py",
    "sdk_python/test_sdk_build.py",
    "async_calling/test_async_calls.py",
    "conformance/test_conformance.py",
    "end_to_end/test_wrong_input.py",
    "pie_tiny/test_training.py",
    "cli/test_cli_server.py",
    "end_to_end/test_many.py",
    "control_traits/test_mcp_servers.py",
    "test_readme.py",
    "end_to_end/test_bench_intercept.py",
    "sdk_rust/test_rust_build.py",
    "sdk_rust/test_rust_completion.py",
)
TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


def pytest_collection_finish(session: pytest.Session) -> None:
    # FlashInfer's library takes over SIGSEGV when it is loaded, with which Wasmtime makes traps of
    # accesses out of bounds. A server has the two in processes of their own, but the tests do not:
    # loaded before Wasmtime's first engine is made, it leaves the signal to that.
    if "torch" in sys.modules:
        with suppress(ImportError):
            import tvm_ffi  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
