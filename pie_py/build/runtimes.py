"""The components that run sources: one for each language, built once and kept in the cache."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from pie_py.build import javascript, python
from pie_py.build.javascript_modules import main_of
from pie_py.build.modules import MAIN
from pie_py.wire.javascript import ENDINGS

# By the kind of program: modules with `runtime_file` and `runtime_component`.
RUNTIMES: dict[str, ModuleType] = {"python": python, "javascript": javascript}


def kind_of_source(path: Path) -> str | None:
    """The runtime of a source file, or of a folder with a main module; None for anything else."""
    if path.is_dir():
        if (path / MAIN).is_file():
            return "python"
        return "javascript" if main_of(path) else None
    if path.suffix == ".py":
        return "python"
    return "javascript" if path.suffix in ENDINGS else None
