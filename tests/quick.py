"""The quick check: style, types, and the tests that a change is likeliest to break, within a time.

    ./check --quick              what git says has changed since `main`, committed or not
    ./check --quick REVISION     what has changed since that revision

Which test sees which module is read from the imports. Tests run in this order: those that have
changed, those that import a changed module themselves, those that protect most (`CORE`), then those
farther and farther away. Whatever has no time is skipped, and says so: `./check` runs it.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from codegen import ensure

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests"
SECONDS = 72.0  # for tests, from their start; style and types need no more on the other core
UNTIL = "PIE_PY_TESTS_UNTIL"  # the time after which no test begins, for all processes of pytest

# Where packages lie, as pytest and the installation find them.
IMPORT_ROOTS = tuple(
    ROOT / folder
    for folder in (
        "",
        "control",
        "inference",
        "gateway",
        "cluster",
        "sdk/python",
        "tests",
        "inferlets/async_function_calling",
    )
)

# The fifth of the tests that protects most: models of whole parts, and what one user's way crosses.
CORE = (
    "tests/test_layers.py",
    "tests/scheduler/test_against_sequential.py",
    "tests/client/test_rpc_property.py",
    "tests/client/test_rpc_sessions.py",
    "tests/device_programs",
    "tests/inference/test_families.py",
    "tests/inference/test_attention_rules.py",
    "tests/inference/test_fused_steps.py",
    "tests/gateway/test_one_choice.py",
    "tests/gateway/test_official_types.py",
    "tests/wasm/test_wasm_guest.py",
    "tests/test_prose.py",
)

# Which tests read files that nobody imports.
READERS = {
    "docs/durable.md": ("tests/durable/test_own_page.py",),
    "docs": ("tests/test_site.py", "tests/test_prose.py", "tests/test_documents.py"),
    "README.md": ("tests/test_documents.py",),
    "sdk/wit": ("tests/conformance",),
    "sdk/js": ("tests/sdk_js",),
    "sdk/rust": ("tests/sdk_rust",),
    "inferlets": ("tests/inferlets",),
    "inferlets/http_answer": ("tests/gateway/test_one_choice.py",),
    "inference/pie_inference/layers/step.c": ("tests/inference/test_fused_steps.py",),
    "gateway/pie_gateway/page": ("tests/gateway/test_page.py",),
    "tests/conformance": ("tests/conformance",),
    "tests/rust_guests": ("tests/rust_guests",),
}

# Whose nightly tests see a room through processes, so that no import tells of it.
ROOMS = {
    "cluster": ("tests/cluster",),
    "control": ("tests/attacks", "tests/control_traits", "tests/durable", "tests/end_to_end"),
    "examples/pie_tiny": ("examples/pie_tiny/tests",),
    "gateway": ("tests/gateway",),
    "inference": ("tests/inference", "tests/end_to_end"),
    "inferlets": ("tests/async_calling", "tests/inferlets"),
    "inferlets/http_answer": ("tests/gateway/test_shipped_component.py",),
    "packaging": ("tests/cli", "tests/test_packaging.py"),
    "pie_py/build": ("tests/sdk_js", "tests/sdk_python", "tests/sdk_rust", "tests/testing"),
    "pie_py/cli": ("tests/cli", "tests/testing"),
    "pie_py/client": ("tests/client", "tests/test_packaging.py"),
    "pie_py/testing": ("tests/testing",),
    "pyproject.toml": ("tests/test_packaging.py", "tests/test_documents.py"),
    "hatch_build.py": ("tests/test_packaging.py",),
    "sdk/js": ("tests/sdk_js", "tests/testing"),
    "sdk/python": ("tests/sdk_python", "tests/inferlets", "tests/testing"),
    "sdk/rust": ("tests/gateway/test_shipped_component.py", "tests/sdk_rust", "tests/testing"),
}


def git_lines(*arguments: str) -> list[str]:
    """Lines that a git command prints."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed_files(since: str) -> list[Path]:
    """Files that differ from where this branch left a revision, and those git does not know."""
    base = git_lines("merge-base", since, "HEAD")[0]
    names = {
        *git_lines("diff", "--name-only", base),
        *git_lines("ls-files", "-o", "--exclude-standard"),
    }
    return [ROOT / name for name in sorted(names)]


@cache
def module_file(name: str) -> Path | None:
    """The file of a dotted name, or of the module from which the name is taken."""
    while name:
        parts = name.split(".")
        for root in IMPORT_ROOTS:
            for file in (
                root.joinpath(*parts[:-1], parts[-1] + ".py"),
                root.joinpath(*parts, "__init__.py"),
            ):
                if file.is_file():
                    return file
        name = name.rpartition(".")[0]
    return None


def imported_files(file: Path) -> Iterator[Path]:
    """Files of this repository that a file imports, at any depth of its code."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if (found := module_file(name)) is not None and found != file:
                yield found


def files_of_tests(places: Iterable[str]) -> list[Path]:
    """Files of tests below folders, or these files themselves."""
    found = []
    for place in places:
        path = ROOT / place
        found += sorted(path.rglob("test_*.py")) if path.is_dir() else [path] * path.is_file()
    return found


@cache
def importers() -> dict[Path, set[Path]]:
    """Of each file of this repository that is imported: the files that import it."""
    found: dict[Path, set[Path]] = {}
    for name in git_lines("ls-files", "-co", "--exclude-standard", "*.py"):
        if (file := ROOT / name).is_file():
            for imported in imported_files(file):
                found.setdefault(imported, set()).add(file)
    return found


def distances(changed: Iterable[Path]) -> dict[Path, int]:
    """For each file of Python that reaches a changed one: over how many imports."""
    found = dict.fromkeys(changed, 0)
    border = list(found)
    while border:
        near = [(user, found[file] + 1) for file in border for user in importers().get(file, ())]
        border = []
        for user, distance in near:
            if user not in found:
                found[user] = distance
                border.append(user)
    return found


def touched_tests(changed: list[Path]) -> list[Path]:
    """Files of tests that have changed, that import what has, or that read it."""
    far = distances(changed)
    order = sorted(
        (t for t in files_of_tests(["tests"]) if far.get(t, 2) < 2), key=lambda t: far[t]
    )
    return list(dict.fromkeys([*order, *of_places(changed, READERS)]))


def of_places(changed: list[Path], tests: dict[str, tuple[str, ...]]) -> Iterator[Path]:
    """Files of the tests of those places in which something has changed."""
    for place, folders in tests.items():
        if any(file.is_relative_to(ROOT / place) for file in changed):
            yield from files_of_tests(folders)


def chosen_tests(changed: list[Path]) -> list[Path]:
    """Files of tests that a change may break, the likeliest first, each once."""
    far = distances(changed)
    farther = sorted((t for t in files_of_tests(["tests"]) if t in far), key=lambda t: far[t])
    return list(dict.fromkeys([*touched_tests(changed), *files_of_tests(CORE), *farther]))


def run_tests(files: list[Path], marker: str, seconds: float) -> int:
    """Runs the tests of these files that a marker's expression takes, while there is time."""
    names = [str(file.relative_to(ROOT)) for file in files]
    os.environ[UNTIL] = str(time.time() + seconds)
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
    command += ["--no-loadscope-reorder", "-m", marker, *names]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED else status


def run_quick(since: str, seconds: float) -> int:
    """Runs the quick check. Returns the exit status: 0 if nothing is wrong."""
    began = time.monotonic()
    tools = Path(sys.executable).parent
    ruff = str(tools / "ruff")
    style = [[ruff, "format", "--check", "--quiet", "."], [ruff, "check", "."]]
    if any(subprocess.run(command, cwd=ROOT, check=False).returncode for command in style):
        return 1
    changed = changed_files(since)
    tests = chosen_tests(changed)
    print(f"{len(changed)} files have changed; {len(tests)} files of tests, while there is time")
    ensure()  # mypy reads generated files
    # Without its cache mypy takes most of a minute. Its daemon saves no second, and loses its way.
    types = subprocess.Popen([tools / "mypy"], cwd=ROOT)
    failed = run_tests(tests, "not slow and not nightly", seconds)
    failed = types.wait() or failed
    print(f"quick check: {'failed' if failed else 'passed'} in {time.monotonic() - began:.0f} s")
    return failed


def run_nightly_of_a_day(seconds: float) -> int:
    """Runs those of the nightly tests that the last day's changes touch, for the last night had
    none of these, but for those that take as long as they like.
    """
    before = git_lines("rev-list", "-1", "--before=1.day", "HEAD")
    if not before:
        print("the nightly tests of the last day's changes: git knows no commit before them")
        return 0
    changed = changed_files(before[0])
    touched = list(dict.fromkeys([*touched_tests(changed), *of_places(changed, ROOMS)]))
    return run_tests(touched, "nightly", seconds) if touched else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="./check --quick", description=__doc__.split("\n")[0])
    parser.add_argument("since", nargs="?", default="main", metavar="REVISION")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the tests")
    parser.add_argument(
        "--nightly", action="store_true", help="instead, the last day's part of the nightly tests"
    )
    arguments = parser.parse_args()
    if arguments.nightly:
        return run_nightly_of_a_day(arguments.seconds)
    return run_quick(arguments.since, arguments.seconds)


if __name__ == "__main__":
    sys.exit(main())
