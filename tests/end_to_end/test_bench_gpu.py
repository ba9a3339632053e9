"""`python -m benchmarks gpu`, and what is brought to a machine for it: what needs no GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from benchmarks.gpu import carry
from benchmarks.gpu.run import TOY, Settings, measure

pytestmark = pytest.mark.nightly  # of benchmarks, not of a server
THERE = ("torch", "transformers", "peft", "pytest", "huggingface-hub", "rich")
# Refuses modules, as a machine would on which nothing has them, and imports what runs there.
IMPORTS = """
import importlib.abc, json, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in refused:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
refused = set(json.load(sys.stdin))
sys.meta_path.insert(0, Refuse())
import benchmarks.gpu.__main__, benchmarks.gpu.run, benchmarks.gpu.server
import benchmarks.capacity, benchmarks.inferlets.compare
import pie_control.__main__, pie_gateway.__main__, pie_inference.__main__
"""


def test_what_runs_there_needs_only_what_is_there_or_brought() -> None:
    brought = carry.needed()
    there = set(THERE).union(*map(carry.needed, THERE)) | carry.STAYS - {"mcp", "componentize-py"}
    found = {*brought, *there, "pie-py", "flashinfer-python"}
    assert not brought & {"torch", "mcp", "componentize-py"}
    refused = [
        module
        for module, packages in packages_distributions().items()
        if not any(canonicalize_name(name) in found for name in packages)
    ]
    assert "mcp" in refused
    subprocess.run(
        [sys.executable, "-c", IMPORTS], input=json.dumps(refused), text=True, check=True
    )


def test_a_run_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    def run() -> dict[str, dict[str, object]]:
        settings = Settings(out=str(tmp_path), seconds=60, shapes=(TOY,), only=("machine",))
        measure(settings, _Quiet())  # type: ignore[arg-type]
        figures: dict[str, dict[str, object]] = json.loads(file.read_text())
        return figures

    file = tmp_path / "gpu.json"
    file.write_text(json.dumps({"machine": {"error": "no time"}, "decode toy": {"took_s": 1}}))
    first = run()
    assert first["machine"]["device"] == "cpu"
    assert first["decode toy"] == {"took_s": 1}
    assert run() == first


class _Quiet:
    """Progress that is not shown."""

    def expect(self, steps: int) -> None: ...

    def __call__(self, text: str) -> None: ...
