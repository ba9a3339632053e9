"""All tests: on one core each, without deadlines, and the files that take longest first."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from quick import UNTIL

from codegen import ensure
from pie_py.config import shipped_files
from pie_py.models.packaged import PACKAGED

if TYPE_CHECKING:
    from support.postgres import Postgres

ensure()  # where something else than the last installation is checked out

# Before anything imports PyTorch, and for all processes that tests start. The suite runs as several
# processes; threads of PyTorch's that wait for each other on cores that another one uses spin, and
# take ten times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell's job in the background ignores interrupts, and one of `nohup` hangups: so would the
# processes that tests start and end so.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Where Python is told to keep no compiled modules, every process that tests start would compile
# ours anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes depends on what else the machine does.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")

# Their files share a server, which each process would start for itself: one process has them all.
TOGETHER = ("async_calling", "conformance", "gateway", "inferlets", "sdk_js", "sdk_rust")
# Those that take longest go first, so that no process is left with one at the end, with all that
# go together; those of clusters, which wait for most of their time, beside others that compute.
LONGEST = (
    "cluster/test_cluster.py",
    "end_to_end/test_bench.py",
    "sdk_js/test_javascript_build.py",
    "cluster/test_foreign_ray.py",
    "gateway/test_access.py",
    "inference/test_on_simulated_gpu.py",
    "async_calling/test_async_calls.py",
    "cluster/test_machines.py",
    "conformance/test_bad_input.py",
    "end_to_end/test_images.py",
    "test_documents.py",
    "end_to_end/test_wrong_input.py",
    "inference/test_fused_steps.py",
    "attacks/test_short_forms.py",
    "sdk_python/test_sdk_build.py",
    "sdk_rust/test_rust_build.py",
    "testing/test_authors_tools.py",
    "end_to_end/test_mcp.py",
    "cli/test_cli_server.py",
    "inference/test_tensor_parallel.py",
    "control_traits/test_mcp_servers.py",
    "end_to_end/test_many.py",
    "inference/test_worker_process.py",
    "inference/test_families.py",
    "end_to_end/test_store.py",
    "cluster/test_shares.py",
    "end_to_end/test_constrained.py",
    "testing/test_mistakes.py",
    "test_packaging.py",
)
TESTS = Path(__file__).parent


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for a Unix socket."""
    with tempfile.TemporaryDirectory(prefix="pie-") as folder:
        yield Path(folder)


@pytest.fixture
def nothing_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout without the runtime and the kernels that its installation makes."""
    for name in ("runtimes", "kernels"):
        monkeypatch.delitem(shipped_files._IN_CHECKOUT, name)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """What runs tests that are coroutines."""
    return "trio"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """PostgreSQL. Without it the test is skipped."""
    pytest.importorskip("psycopg")
    from support.postgres import Postgres

    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real model, SmolLM2-135M-Instruct as a GGUF. Without it the test is skipped."""
    return _pulled("smollm2")


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real encoder, the folder of all-MiniLM-L6-v2. Without it the test is skipped."""
    return _pulled("minilm").parent


def _pulled(name: str) -> Path:
    file = PACKAGED[name].file
    if not file.is_file():
        pytest.skip(f"the model {name} is not on this machine: pie-py pull {name}")
    return file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """As `--dist loadfile`, but for the files that go together."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope

    def unit_of(test: str) -> str:
        folder = test.split("/")[1]
        return folder if folder in TOGETHER else str(file_of(test))

    scheduling._split_scope = unit_of
    return scheduling


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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # An `-m` of the command line has taken the place of that of `addopts`.
    if "nightly" not in config.getoption("markexpr"):
        nightly = {item for item in items if item.get_closest_marker("nightly")}
        config.hook.pytest_deselected(items=list(nightly))
        items[:] = [item for item in items if item not in nightly]
    if UNTIL in os.environ:  # in the order of the quick check
        endless = {item for item in items if _limit(item) == 0}
        config.hook.pytest_deselected(items=list(endless))
        items[:] = [item for item in items if item not in endless]
        return
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    assert all(file.is_file() for file in places), "a file has another name"
    items.sort(key=lambda item: places.get(item.path, len(LONGEST)))


def _limit(item: pytest.Item) -> float | None:
    """Seconds that a test's mark allows it. 0 is no limit."""
    mark = item.get_closest_marker("timeout")
    return mark.args[0] if mark else None


def pytest_runtest_setup() -> None:
    if time.time() > float(os.environ.get(UNTIL, "inf")):
        pytest.skip("no time is left for it")


def pytest_collection_finish(session: pytest.Session) -> None:
    # FlashInfer's library takes over SIGSEGV when it is loaded, with which Wasmtime makes traps of
    # accesses out of bounds. A server has the two in processes of their own, but the tests do not:
    # loaded before Wasmtime's first engine is made, it leaves the signal to that.
    if "torch" in sys.modules:
        with suppress(ImportError):
            import tvm_ffi  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
