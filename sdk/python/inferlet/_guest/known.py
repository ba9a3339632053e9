"""Programs whose modules the image holds imported already: those of the library.

An instance is a copy of the image, so it has such modules for nothing, while those of another
program run in every instance. A program is known by the text of its modules, all but the main one.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from inferlet._guest.modules import MARK, ModuleFinder, Program

_modules: dict[str, dict[str, ModuleType]] = {}


def add(file: str, text: str) -> None:
    """Imports the modules of a program while the image is built, all but the main one.

    Args:
        file: what the program is called, with `.py` at its end: tracebacks name it.
        text: of the program.
    """
    key = _others(text)
    if key in _modules:
        return
    program, _ = Program.compiled(file, text)
    finder = ModuleFinder(program)
    sys.meta_path.insert(0, finder)
    before = set(sys.modules)
    for path in program.paths - {program.main}:
        importlib.import_module(
            path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        )
    sys.meta_path.remove(finder)
    own = [
        name
        for name in sys.modules.keys() - before
        if getattr(sys.modules[name].__spec__, "loader", None) is finder
    ]
    _modules[key] = {name: sys.modules.pop(name) for name in own}


def imported(text: str) -> dict[str, ModuleType]:
    """The modules of a program that the image holds; none if it does not know the program."""
    return _modules.get(_others(text), {}) if text.startswith(MARK) else {}


def _others(text: str) -> str:
    """The modules of a program of several, all but the main one."""
    return text.removeprefix(MARK).split("\0", 2)[2]
