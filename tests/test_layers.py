"""Who may import whom: package by package, folder by folder, and no rings of files.

Imports under `TYPE_CHECKING` count like any other: whoever reads a file has to know what it names.
To hold another package to its folders, add it to `FOLDERS`.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Each package: where it is, and which of these packages it may import.
PACKAGES = {
    "pie_py": (ROOT / "pie_py", {"pie_py", "codegen"}),
    "pie_control": (ROOT / "control/pie_control", {"pie_control", "pie_py"}),
    "pie_inference": (ROOT / "inference/pie_inference", {"pie_inference", "pie_py"}),
    "pie_gateway": (ROOT / "gateway/pie_gateway", {"pie_gateway", "pie_py"}),
    "pie_cluster": (ROOT / "cluster/pie_cluster", {"pie_cluster", "pie_control", "pie_py"}),
    "inferlet": (ROOT / "sdk/python/inferlet", {"inferlet"}),
    "asynclm": (ROOT / "inferlets/async_function_calling/asynclm", {"asynclm", "inferlet"}),
    "benchmarks": (
        ROOT / "benchmarks",
        {"benchmarks", "pie_py", "pie_control", "pie_inference", "pie_cluster", "inferlet"},
    ),
    "codegen": (ROOT / "codegen", {"codegen", "pie_py"}),
}

# Each package's folders (and files that lie beside them), lowest first, with what each may import
# besides itself. Rows only name rows above them, so that arrows between folders run one way.
FOLDERS: dict[str, dict[str, str]] = {
    "pie_py": {
        "pie_py": "",  # its version
        # The floor: what both processes stand on.
        "config": "",
        "device_programs": "",
        "wire": "config device_programs",
        "build": "device_programs config wire",
        "models": "build config",
        # The roof.
        "client": "pie_py build config wire",
        "testing": "config wire build client",
        "bench": "pie_py config wire build models client",
        "cli": "pie_py config wire build models client bench testing",
        "__main__": "cli",
    },
    "pie_control": {
        "errors": "",
        "guest_json": "errors",
        "fairness": "",
        "shares": "errors",
        "timers": "",
        "tasks": "errors",
        "data_folder": "errors",
        "confined": "errors fairness",
        "device_programs": "errors fairness confined",
        "wasm": "errors",
        "programs": "errors data_folder fairness confined wasm",
        "journal": "errors",
        "instances": "errors data_folder timers tasks fairness shares wasm programs journal",
        "resources": "errors shares timers",
        "prefix": "errors timers instances resources",
        "scheduler": "errors fairness timers instances resources prefix",
        "interception": "errors wasm instances resources scheduler",
        "models": "errors confined data_folder shares timers tasks instances resources prefix"
        " scheduler interception",
        "api": "errors timers tasks fairness shares confined guest_json data_folder wasm programs"
        " instances resources prefix scheduler interception models device_programs",
        "durable": "errors tasks timers shares wasm programs journal instances scheduler models"
        " api",
        "wiring": "timers shares data_folder confined wasm programs instances"
        " scheduler interception models api device_programs durable",
        "rpc": "errors tasks fairness shares confined programs instances models api durable wiring",
        "extension": "wasm programs rpc wiring",
        "server": "tasks data_folder confined wasm programs scheduler api rpc wiring extension",
        "running": "scheduler server",
        "__main__": "scheduler running",
    },
    "pie_inference": {
        "errors": "",
        "device": "",
        "checkpoints": "errors",
        "layers": "errors device",
        "memory": "device",
        "attention": "errors device layers memory",
        "vision": "memory",
        "parallel": "errors layers",
        "models": "errors device checkpoints layers memory attention vision parallel",
        "adapters": "errors device layers",
        "sampling": "device memory",
        "cuda": "errors device layers memory attention models sampling",
        "handlers": "errors device layers memory attention vision parallel models adapters sampling"
        " cuda",
        "calibration": "device handlers",
        "loading": "errors device checkpoints layers memory attention parallel models adapters"
        " sampling cuda handlers calibration",
        "serving": "errors device parallel handlers calibration loading",
        "__main__": "serving",
    },
    "pie_gateway": {
        "problems": "",
        "schemas": "",
        "backend": "problems",
        "metrics": "backend",
        "listening": "",
        "telemetry": "listening",
        "http": "problems backend metrics telemetry",
        "dialects": "backend",
        "openai": "problems schemas backend http dialects",
        "anthropic": "problems schemas backend http dialects openai",
        "ollama": "problems schemas backend http dialects openai",
        "inferlets": "problems schemas backend http",
        "batches": "problems backend http",
        "page": "",
        "watching": "problems metrics http backend",
        "operations": "problems schemas http openai anthropic ollama inferlets batches watching",
        "openapi": "operations",
        "app": "problems schemas backend metrics telemetry http openai anthropic inferlets batches"
        " page watching operations openapi listening",
        "__main__": "http listening app",
    },
    "pie_cluster": {
        "config": "",
        "wire": "config",
        "directory": "config wire",
        "database": "",
        "node": "config wire database",
        "gateway": "config wire directory database node",
        "machines": "config wire directory",
        "command": "config machines",
    },
    "asynclm": {
        "cml": "",
        "tools": "cml",
        "calling": "cml tools",
    },
}

# What each process may import of pie_py (the gateway is a client), beside its version.
FLOOR = {
    "pie_control": "config wire build models device_programs",
    "pie_inference": "config wire models device_programs",
    "pie_gateway": "config wire build models device_programs client",
}

# Packages of which two files name each other; in no ring of imports are more.
PAIRED = ("inferlet",)


@dataclass(frozen=True)
class Import:
    """One import: the dotted names of the module that imports and of the one that is imported."""

    importer: str
    imported: str


def files_of(package: str) -> list[Path]:
    """The package's files. Inferlets of the benchmarks are data: they run in the server's
    guests.
    """
    folder, _ = PACKAGES[package]
    guests = {"guests", "guest.py", "templates"}
    files = sorted(folder.rglob("*.py"))
    return [file for file in files if not guests & set(file.relative_to(folder).parts)]


def module_name(package: str, file: Path) -> str:
    """The dotted name under which a file of a package is imported."""
    parts = (package, *file.relative_to(PACKAGES[package][0]).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(file: Path) -> frozenset[str]:
    """Dotted names that a file imports, at any depth: modules, and what `from` takes out of
    them.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(names)


@cache
def inner_imports(package: str) -> frozenset[Import]:
    """Imports between the files of one package."""
    modules = {module_name(package, file): file for file in files_of(package)}

    def found() -> Iterator[Import]:
        for importer, file in modules.items():
            for name in imports_of(file):
                while name and name not in modules:
                    name = name.rpartition(".")[0]
                if name and name != importer:
                    yield Import(importer, name)

    return frozenset(found())


def folder_of(module: str) -> str:
    """The folder below the package, or the file's own name where it lies in none."""
    return module.split(".")[1] if "." in module else module


def rings(package: str) -> list[set[str]]:
    """Groups of two or more modules each of which reaches each other by imports, largest first."""
    graph: dict[str, set[str]] = {}
    for each in inner_imports(package):
        graph.setdefault(each.importer, set()).add(each.imported)

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        stack = [start]
        while stack:
            for target in graph.get(stack.pop(), set()) - seen:
                seen.add(target)
                stack.append(target)
        return seen

    reach = {module: reached(module) for module in graph}
    found: list[set[str]] = []
    for module, targets in reach.items():
        ring = {other for other in targets if module in reach.get(other, set())}
        if ring and ring not in found:
            found.append(ring)
    return sorted(found, key=len, reverse=True)


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_only_what_lies_below(package: str) -> None:
    _, allowed = PACKAGES[package]
    files = files_of(package)
    assert files, f"{package} has no Python files"
    for file in files:
        for name in imports_of(file):
            top = name.split(".")[0]
            assert top not in PACKAGES or top in allowed, f"{file.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("package", FOLDERS)
def test_folders_import_only_what_the_table_allows(package: str) -> None:
    table = FOLDERS[package]
    for each in inner_imports(package):
        source, target = folder_of(each.importer), folder_of(each.imported)
        if source == target:
            continue
        assert source in table, f"{source} has no row in the table"
        assert target in table[source].split(), f"{each.importer} imports {each.imported}"


@pytest.mark.parametrize("package", FOLDERS)
def test_rows_of_the_table_name_only_rows_above_them(package: str) -> None:
    above: set[str] = set()
    for folder, allowed in FOLDERS[package].items():
        assert set(allowed.split()) <= above, f"{folder} names a row that is not above it"
        above.add(folder)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_ring_of_more_than_two_files(package: str) -> None:
    largest = max(rings(package), key=len, default=set())
    assert len(largest) <= (2 if package in PAIRED else 0), sorted(largest)


@pytest.mark.parametrize("package", FLOOR)
def test_processes_import_only_the_floor_of_pie_py(package: str) -> None:
    allowed = (*(f"pie_py.{name}." for name in FLOOR[package].split()), "pie_py.__version__")
    for file in files_of(package):
        for name in imports_of(file):
            if name.split(".")[0] == "pie_py":
                assert name.startswith(allowed), f"{file.relative_to(ROOT)} imports {name}"


def test_only_the_wasm_package_touches_the_c_api() -> None:
    for package in PACKAGES:
        for file in files_of(package):
            if (ROOT / "control/pie_control/wasm") not in file.parents:
                assert not any(n.startswith("wasmtime._") for n in imports_of(file)), file


def test_only_clusters_import_what_clusters_need() -> None:
    """And the store, where the configuration names a database."""
    store = ROOT / "control/pie_control/api/store/postgres.py"
    for package in PACKAGES.keys() - {"pie_cluster"}:
        for file in files_of(package):
            for name in imports_of(file):
                assert name.split(".")[0] not in ("ray", "psycopg") or file == store, file


def test_nothing_but_benchmarks_imports_clusters() -> None:
    """The others find them by entry points, and name no module of them either."""
    for package in PACKAGES.keys() - {"pie_cluster", "benchmarks"}:
        for file in files_of(package):
            assert "pie_cluster" not in file.read_text(encoding="utf-8"), file


def test_one_machine_imports_nothing_of_a_cluster() -> None:
    """No process of a server, nor the client: a cluster costs who has none nothing."""
    program = (
        "import sys, pie_control.__main__, pie_control.server, pie_py.client.sync\n"
        "import pie_inference.__main__\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('ray', 'psycopg', 'pie_cluster')])"
    )
    path = os.pathsep.join(
        str(ROOT / folder) for folder in (".", "control", "inference", "cluster")
    )
    found = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert found.stdout.strip() == "[]"


def test_one_file_calls_the_generators() -> None:
    """What makes the SDKs of a checkout whole; a wheel has no generators."""
    callers = [
        str(file.relative_to(ROOT))
        for file in files_of("pie_py")
        if any(name.startswith("codegen") for name in imports_of(file))
    ]
    assert callers == ["pie_py/build/__init__.py"]


def test_all_python_children_are_started_by_one_function() -> None:
    """Which keeps the folder one stands in from their import path; others would forget it."""
    at_home = {"benchmarks", "codegen"}
    shipped = [folder for name, (folder, _) in PACKAGES.items() if name not in at_home]
    found = []
    for file in (file for folder in shipped for file in folder.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        shown = {
            node
            for text in ast.walk(tree)
            if isinstance(text, ast.JoinedStr)
            for node in ast.walk(text)
        }
        found += [
            str(file.relative_to(ROOT))
            for node in ast.walk(tree)
            if _starts_python(node) and node not in shown
        ]
    assert found == ["pie_py/config/processes.py"]


def _starts_python(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="sys"), attr="executable" | "_base_executable"):
            return True
        case ast.Import(names=names):
            return any(name.name.startswith("multiprocessing") for name in names)
        case ast.ImportFrom(module=module, names=names):
            told = {f"{module}.{name.name}" for name in names}
            return (module or "").startswith("multiprocessing") or bool(
                told & {"sys.executable", "concurrent.futures.ProcessPoolExecutor"}
            )
    return False
