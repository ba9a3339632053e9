"""All tests: on one core each, without deadlines, and the files that take longest first."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterator
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

# Those that take longest go first, so that no process is left with one at the end; those of
# clusters, which wait for most of their time, one after the other, beside others that compute.
LONGEST = (
    "cluster/test_cluster.py",
    "end_to_end/test_bench.py",
    "inference/test_on_simulated_gpu.py",
    "end_to_end/test_images.py",
    "cluster/test_ranks.py",
    "sdk_js/test_javascript_build.py",
    "test_snippets.py",
    "cluster/test_machines.py",
    "end_to_end/test_wrong_input.py",
    "testing/test_authors_tools.py",
    "attacks/test_short_forms.py",
    "cluster/test_autoscale_ray.py",
    "async_calling/test_async_calls.py",
    "inference/test_ranks_over_tcp.py",
    "cluster/test_topics.py",
    "sdk_python/test_sdk_build.py",
    "inferlets/test_library_rust.py",
    "end_to_end/test_mcp.py",
    "cli/test_cli_server.py",
    "inference/test_tensor_parallel.py",
    "sdk_js/test_sdk_js.py",
    "gateway/test_access.py",
    "pie_tiny/test_training.py",
    "control_traits/test_mcp_servers.py",
    "conformance/test_bad_input.py",
    "end_to_end/test_many.py",
    "end_to_end/test_bench_async.py",
    "conformance/test_conformance.py",
    "inference/test_worker_process.py",
    "inference/test_families.py",
    "end_to_end/test_replay.py",
    "end_to_end/test_store.py",
    "end_to_end/test_bench_intercept.py",
    "sdk_rust/test_rust_build.py",
    "end_to_end/test_constrained.py",
    "testing/test_mistakes.py",
    "test_packaging.py",
)
TESTS = Path(__file__).parent


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What tests import stays: to look for garbage in it takes half a second, each time. At the end
    it is looked at again, or extension modules would tell of leaks.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    assert all(file.is_file() for file in places), "a file has another name"
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


def pytest_collection_finish(session: pytest.Session) -> None:
    # FlashInfer's library takes over SIGSEGV when it is loaded, with which Wasmtime makes traps of
    # accesses out of bounds. A server has the two in processes of their own, but the tests do not:
    # loaded before Wasmtime's first engine is made, it leaves the signal to that.
    if "torch" in sys.modules:
        with suppress(ImportError):
            import tvm_ffi  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
