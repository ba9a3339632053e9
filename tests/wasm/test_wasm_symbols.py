"""What is checked when the package is imported."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from pie_control.wasm import symbols


def test_another_wasmtime_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "version", lambda package: "51.0.0")
    with pytest.raises(ImportError, match=r"needs wasmtime 50\.0\.1, found 51\.0\.0; install"):
        symbols._check()


def test_a_missing_function_is_named() -> None:
    with pytest.raises(ImportError, match="lacks the C function wasmtime_no_such_function"):
        symbols._declare(symbols._KEEPS_LOCK, "wasmtime_no_such_function", "-")


def test_nobody_else_touches_the_bindings() -> None:
    root = Path(__file__).parents[2]
    for folder in ("control", "pie_py", "inference"):
        for path in (root / folder).rglob("*.py"):
            if path.parent.name == "wasm" and path.parent.parent.name == "pie_control":
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    continue
                names = {alias.name for alias in node.names}
                if isinstance(node, ast.ImportFrom):
                    module = node.module or ""
                    names = {module, *(f"{module}.{name}" for name in names)}
                assert not any(name.startswith("wasmtime._") for name in names), path
