"""The tests for a GPU, on one that is simulated: FlashInfer's host code, devices, order, and
waiting.

It shows that the worker's CUDA code holds to the rules, not what any kernel computes or takes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
SIMULATED = TESTS / "simulated_gpu"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("flashinfer") is None,
        reason="needs FlashInfer's host code: pip install --no-deps flashinfer-python==0.6.6",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="needs Triton, which interprets its kernels: pip install triton",
    ),
]


def run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module in a process that has the simulated GPU, as have those that it starts."""
    paths = [str(SIMULATED / "site"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def passed(*arguments: str) -> int:
    """How many tests passed; all did, and none was skipped."""
    plugin = ("-p", "simulated_gpu.plugin", "-p", "no:cacheprovider", "-o", "addopts=")
    done = run("pytest", "-q", *plugin, *arguments)
    print(done.stdout[-20_000:], done.stderr[-20_000:])
    assert done.returncode == 0
    assert "skipped" not in done.stdout
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    return int(found[1])


def test_the_simulation_finds_mistakes() -> None:
    assert passed(str(SIMULATED / "test_rules.py")) >= 25


def test_fused_sampling_takes_the_same_tokens() -> None:
    assert passed(str(SIMULATED / "test_fused_sampling.py")) >= 9


def test_the_host_waits_for_nothing() -> None:
    assert passed(str(SIMULATED / "test_waits.py")) >= 25


def test_kernels_handlers_and_memory() -> None:
    names = ("test_attention.py", "test_handlers.py", "test_gpu_images.py", "test_gpu_memory.py")
    # What they do without graphs, they do with them.
    chosen = ["-k", "not (mixed_batches and False)"]
    assert passed(*(str(TESTS / "gpu" / name) for name in names), *chosen) >= 45


def test_a_whole_server() -> None:
    assert passed(str(TESTS / "gpu" / "test_server.py"), "-k", "more_pages") == 1


SIZES = {"graph_batch": 4, "kv_pages": 200}
BATCH = {"embeds": 600, "max_batch_tokens": 512}


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (["decode", "--count", "1", "3", "--context", "40", "--steps", "6"], SIZES | BATCH),
        (["prefill", "--length", "64", "256"], SIZES),
        (["swap", "--count", "2", "--context", "40", "--steps", "6"], SIZES | BATCH),
    ],
)
def test_phases_of_the_benchmark(arguments: list[str], sizes: dict[str, int]) -> None:
    """Each ends with figures. Those say nothing."""
    shape = ("--shape", "toy", "--config", json.dumps(sizes))
    done = run("benchmarks.gpu", *arguments, *shape)
    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
