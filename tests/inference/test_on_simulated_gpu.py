"""The tests for a GPU, on one that is simulated: FlashInfer's host code, devices, order, and
waiting.

It shows that the worker's CUDA code holds to the rules, not what any kernel computes or takes.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.rust_components import rust_component

TESTS = Path(__file__).parent.parent
SIMULATED = TESTS / "simulated_gpu"
# Not modules of transformers: what they are given under another attention, the simulation has not.
REAL_ALONE = "test_gpu_images"
FILES = sorted(
    file
    for folder in (SIMULATED, TESTS / "gpu")
    for file in folder.glob("test_*.py")
    if file.stem != REAL_ALONE
)

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(900),  # the first test waits for all that run on the simulated GPU
    *(
        pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"pip install {how}")
        for name, how in (
            ("flashinfer", "--no-deps flashinfer-python==0.6.6"),
            ("triton", "triton"),
        )
    ),
]


class Inner:
    """Tests that ran in one process that has the simulated GPU, as have those that it starts.

    What it imports takes 5 seconds.
    """

    def __init__(self, folder: Path, program: Path) -> None:
        """Takes an empty folder, and the program of a whole server's instances."""
        report = folder / "report.xml"
        plugins = ("simulated_gpu.plugin", "pytest_timeout", "no:cacheprovider")
        plugin = (*(part for name in plugins for part in ("-p", name)), "-o", "addopts=")
        arguments = (*plugin, "-o", "timeout=600", "-k", CHOSEN, *map(str, FILES))
        paths = [str(SIMULATED / "site"), str(TESTS), os.environ.get("PYTHONPATH", "")]
        environment = {
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # others' plugins take seconds to import
            "PIE_BENCH_PROGRAM": str(program),
        }
        pytest_ = (sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}")
        self.done = subprocess.run(
            [*pytest_, *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        said = self.done.stdout[-4000:] + self.done.stderr[-4000:]
        assert report.exists(), f"pytest did not come to its end:\n{said}"
        self._cases = list(ElementTree.parse(report).iter("testcase"))

    def check(self, file: Path) -> None:
        """All test functions of a file ran, each once or with several parameters, and passed."""
        passed: set[str] = set()
        problems: list[str] = []
        for case in self._cases:
            name = str(case.get("name"))
            if str(case.get("classname")).rpartition(".")[2] != file.stem:
                continue
            found = [case.find(kind) for kind in ("failure", "error", "skipped")]
            problem = next((each for each in found if each is not None), None)
            if problem is not None:  # an element without children is false
                problems.append(f"{name}: {problem.text or problem.get('message')}")
            else:
                passed.add(name.partition("[")[0])
        if problems:
            pytest.fail("\n\n".join([f"{len(problems)} inner tests", *problems]), pytrace=False)
        functions = re.findall(r"^def (test_\w+)", file.read_text(), re.M)
        assert passed == {name for name in functions if FOR_SPEED not in name}


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Inner:
    return Inner(tmp_path_factory.mktemp("inner"), rust_component("bench"))


# Families whose kernels differ. In batches without rules all are computed with.
DIFFERENT = "gemma2 or qwen2-window or qwen3-moe or llama-yarn"
FOR_SPEED = "256_inferlets"  # which asks a real GPU for its speed
# What is done without graphs is done with them.
CHOSEN = (
    f"not (mixed_batches and False) and not {FOR_SPEED}"
    f" and (not rules_of_every_kind or {DIFFERENT})"
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file(inner: Inner, file: Path) -> None:
    inner.check(file)


def test_nothing_else_went_wrong(inner: Inner) -> None:
    assert inner.done.returncode == 0, inner.done.stdout[-4000:]
