"""Clusters on the oldest release of Ray that they take; all other tests have the newest."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

TESTS = (
    "test_cluster.py::test_a_killed_machine_comes_back",
    "test_cluster.py::test_what_is_killed_takes_its_own_node_alone[actor]",
    "test_foreign_ray.py::test_it_has_actors_of_one_namespace_there_and_leaves_nothing",
    "test_cluster.py::test_a_machine_that_died_joins_again_with_its_node",
)
KEPT = Path(__file__).parents[2] / "target"  # for the next run of this test


def oldest() -> str:
    """The release that is the lower bound of what the package needs."""
    needed = next(each for each in map(Requirement, requires("pie-py") or ()) if each.name == "ray")
    return next(each.version for each in needed.specifier if each.operator == ">=")


def brought(release: str, site: Path) -> str | None:
    """Installs a release of Ray into a folder; returns why that cannot be done, if it cannot."""
    site.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=site.parent) as part:
        made = Path(part, "site")
        install = ("-m", "pip", "install", "-q", "--no-deps", "--no-compile", f"ray=={release}")
        command = [sys.executable, *install, "--target", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()[-300:]
        made.rename(site)
    return None


@pytest.mark.nightly
def test_the_oldest_release_has_a_cluster_of_its_own_and_one_that_is_there() -> None:
    release = oldest()
    site = KEPT / f"ray-{release}"
    if not site.is_dir():
        reason = brought(release, site)
        if reason is not None:
            pytest.skip(f"pip cannot bring Ray {release}: {reason}")
    environment = {**os.environ, "PYTHONPATH": str(site)}
    version = [sys.executable, "-P", "-c", "import ray; print(ray.__version__)"]
    assert subprocess.check_output(version, env=environment, text=True).strip() == release
    folder = Path(__file__).parent
    tests = [f"{folder / test}" for test in TESTS]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            "nightly or not nightly",
            "-p",
            "no:cacheprovider",
            *tests,
        ],
        cwd=folder.parents[1],
        env={name: value for name, value in environment.items() if "PYTEST" not in name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    assert f"{len(TESTS)} passed" in done.stdout
