"""The layers import each other in one direction only."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "pie_py": (ROOT / "pie_py", {"pie_py"}),
    "pie_control": (ROOT / "control/pie_control", {"pie_control", "pie_py"}),
    "pie_inference": (ROOT / "inference/pie_inference", {"pie_inference", "pie_py"}),
    "inferlet": (ROOT / "sdk/python/inferlet", {"inferlet"}),
}

# What each folder or loose file of a process may import of the same process: only what stands
# before it in the table.
WORKER = """
    errors         :
    device         :
    checkpoints    : errors
    layers         : device errors
    memory         : device
    attention      : device errors memory
    vision         : checkpoints errors layers
    parallel       : errors layers
    models         : attention checkpoints device errors layers parallel vision
    adapters       : errors layers
    sampling       : device memory
    cuda           : attention device errors layers memory models sampling
    served_model   : adapters attention cuda device memory models parallel sampling
    handlers       : attention cuda device errors sampling served_model vision
    calibration    : handlers served_model
    loading        : adapters attention calibration checkpoints cuda device errors memory models
                     parallel sampling served_model
    serving        : calibration device errors handlers loading parallel served_model tracing
    tracing        :
    gpu_bench      : attention cuda errors models served_model serving
    __main__       : serving
    __init__       :
"""
FOLDERS = {"inference/pie_inference": WORKER}


def imports_of(file: Path) -> set[str]:
    """Dotted names of the modules that a file imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("layer", ALLOWED)
def test_layer_imports_only_what_lies_below(layer: str) -> None:
    folder, allowed = ALLOWED[layer]
    # Inferlets of the benchmarks are data there: they run in the server, not in this process.
    files = [file for file in folder.rglob("*.py") if "guests" not in file.parts]
    assert files, f"{folder} has no Python files"
    for file in files:
        for name in imports_of(file):
            top = name.split(".")[0]
            assert top not in ALLOWED or top in allowed, f"{file.relative_to(ROOT)} imports {name}"


def allowed_by(table: str) -> dict[str, set[str]]:
    """Which folders each folder of a table may import."""
    found: dict[str, set[str]] = {}
    for part in re.split(r"\n(?=    \S)", table.strip("\n")):
        name, _, allowed = part.partition(":")
        found[name.strip()] = set(allowed.split())
    return found


@pytest.mark.parametrize("process", FOLDERS)
def test_folders_of_a_process_import_one_way(process: str) -> None:
    table = allowed_by(FOLDERS[process])
    root = ROOT / process
    used: dict[str, set[str]] = {name: set() for name in table}
    for file in root.rglob("*.py"):
        own = file.relative_to(root).parts[0].removesuffix(".py")
        assert own in table, f"{process}/{own} lacks in the table"
        for name in imports_of(file):
            top, _, rest = name.partition(".")
            if top == root.name and rest and (other := rest.split(".")[0]) != own:
                assert other in table[own], f"{file.relative_to(ROOT)} imports {name}"
                used[own].add(other)
    assert used == table, "the table allows more than is used"
    TopologicalSorter(table).prepare()  # raises CycleError if arrows run in a circle


def modules_of(root: Path) -> dict[str, Path]:
    """Files of a package by their dotted names."""
    return {
        ".".join(file.relative_to(root.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): file
        for file in root.rglob("*.py")
    }


@pytest.mark.parametrize("process", FOLDERS)
def test_modules_of_a_process_import_in_no_circle(process: str) -> None:
    modules = modules_of(ROOT / process)
    graph = {name: imports_of(file) & modules.keys() for name, file in modules.items()}
    TopologicalSorter(graph).prepare()


def test_worker_knows_of_pie_py_only_the_wire_and_the_configuration() -> None:
    for file in (ROOT / "inference/pie_inference").rglob("*.py"):
        for name in imports_of(file):
            if name.split(".")[0] == "pie_py":
                assert name.startswith(("pie_py.wire", "pie_py.config")), f"{file}: {name}"


def test_only_the_wasm_package_touches_the_c_api() -> None:
    for folder, _ in ALLOWED.values():
        for file in folder.rglob("*.py"):
            if (ROOT / "control/pie_control/wasm") not in file.parents:
                names = imports_of(file)
                assert not any(n.startswith("wasmtime._") for n in names), file
