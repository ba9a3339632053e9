"""The layers import each other in one direction only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

ALLOWED = {
    "pie_py": (ROOT / "pie_py", {"pie_py"}),
    "pie_control": (ROOT / "control/pie_control", {"pie_control", "pie_py"}),
    "pie_inference": (ROOT / "inference/pie_inference", {"pie_inference", "pie_py"}),
    "inferlet": (ROOT / "sdk/python/inferlet", {"inferlet"}),
}


def imports_of(file: Path) -> set[str]:
    """Dotted names of the modules that a file imports, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
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
