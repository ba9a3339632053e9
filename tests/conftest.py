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

# Where Python is told to keep no compiled modules, every process that tests start would compile
# ours anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes depends on what else the machine does.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

# Those that take longest go first, so that no process is left with one at the end.
LONGEST = (
    "cluster/test_cluster.py",
    "cluster/test_topics.py",
    "cluster/test_machines.py",
    "cluster/test_ranks.py",
    "cluster/test_autoscale_ray.py",
    "end_to_end/test_bench.py",
    "inference/test_on_simulated_gpu.py",
    "sdk_python/test_sdk_build.py",
    "sdk_js/test_javascript_build.py",
    "async_calling/test_async_calls.py",
    "conformance/test_conformance.py",
    "end_to_end/test_wrong_input.py",
    "control_traits/test_mcp_servers.py",
    "conformance/test_bad_input.py",
    "end_to_end/test_bench_async.py",
    "sdk_rust/test_rust_completion.py",
    "cli/test_cli_server.py",
    "end_to_end/test_bench_intercept.py",
    "end_to_end/test_images.py",
    "end_to_end/test_mcp.py",
    "end_to_end/test_store.py",
    "pie_tiny/test_training.py",
    "gateway/test_access.py",
    "sdk_rust/test_rust_build.py",
    "test_readme.py",
    "end_to_end/test_many.py",
    "test_packaging.py",
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
