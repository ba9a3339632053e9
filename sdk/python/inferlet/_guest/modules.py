"""A program's modules: their sources, their code, and how they import each other.

A program of one module is its source. One of several is what `pie_py.wire.modules` packs: a mark,
then a path and a source for each module, the main one first, all of it separated by NUL.
"""

from __future__ import annotations

import linecache
import marshal
import warnings
from binascii import a2b_base64, b2a_base64
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

BOM = "\ufeff"  # as some editors begin a file

MARK = "\0modules\0"

own_files: set[str] = set()  # of programs, whose frames tracebacks show


class Program:
    """The modules of a program.

    Attributes:
        file: name of the main module's file, for tracebacks and `sys.argv`.
        main: path of the main module.
        paths: of all modules, within the program.
    """

    def __init__(
        self, file: str, text: str, code: Mapping[str, CodeType | slice], kept: str = ""
    ) -> None:
        """Makes the modules known to tracebacks.

        Args:
            file: what the program is called, with `.py` at its end.
            text: of the program, with one module or several.
            code: of each module by path, the main one first; where it is in `kept` until decoded.
            kept: code that an earlier instance has kept.
        """
        self._text = text
        self._kept = kept
        self._code = dict(code)
        self._folder = file.removesuffix(".py") + "/" if text.startswith(MARK) else ""
        self.paths = self._code.keys()
        self.main = next(iter(self.paths))
        self.file = self.file_of(self.main)
        for path in self.paths:
            name = self.file_of(path)
            own_files.add(name)
            # A function: the text is split only when a traceback is to show lines.
            linecache.cache[name] = (partial(self.source, path),)

    @classmethod
    def compiled(cls, file: str, text: str) -> tuple[Program, bool]:
        """Compiles every module, also those that this run may never import: only before a program
        runs is it certain that code is that of its sources, so that others may be given it. Returns
        the program, and whether there was nothing to warn of. Raises SyntaxError, ValueError: a
        module is not Python.
        """
        found = cls(file, text, dict.fromkeys(_split(file, text), slice(0)))
        with warnings.catch_warnings(record=True) as warned:
            for path in found.paths:
                code = compile(found.source(path), found.file_of(path), "exec", dont_inherit=True)
                found._code[path] = code
        for one in warned:
            warnings.showwarning(one.message, one.category, one.filename, one.lineno)
        return found, not warned

    @classmethod
    def restored(cls, file: str, text: str, kept: str) -> Program:
        """A program whose code an earlier instance has `kept`."""
        code = {}
        start = kept.index("\n") + 1
        for line in kept[: start - 1].split("\0"):
            path, _, length = line.rpartition(":")
            code[path] = slice(start, start + int(length))
            start += int(length)
        return cls(file, text, code, kept)

    def kept(self) -> str:
        """The code as text that `restored` reads in this version of the runtime.

        The first line is each module's `path:length`, with NUL between them, what follows is their
        code: an instance copies and decodes only that of the modules that it imports.
        """
        codes = [b2a_base64(marshal.dumps(self.code(path)), newline=False) for path in self.paths]
        index = (f"{path}:{len(code)}" for path, code in zip(self.paths, codes, strict=True))
        return "\0".join(index) + "\n" + b"".join(codes).decode()

    def code(self, path: str) -> CodeType:
        """Code of a module."""
        code = self._code[path]
        if isinstance(code, slice):
            code = self._code[path] = marshal.loads(a2b_base64(self._kept[code]))
        return code

    def source(self, path: str) -> str:
        """Source of a module."""
        return self._sources[path]

    def file_of(self, path: str) -> str:
        """A module's file in tracebacks: `program/tools/web.py`."""
        return self._folder + path

    @cached_property
    def _sources(self) -> dict[str, str]:
        return _split(self.main, self._text)


class ModuleFinder:
    """Imports the modules of a program."""

    def __init__(self, program: Program) -> None:
        self._program = program

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Finds a package, a module, or a folder that has modules but no `__init__.py`."""
        base = name.replace(".", "/")
        paths = self._program.paths
        loader: Any = self
        for file, is_package in ((f"{base}/__init__.py", True), (f"{base}.py", False)):
            if file in paths:
                return ModuleSpec(name, loader, origin=file, is_package=is_package)
        if any(one.startswith(f"{base}/") for one in paths):
            return ModuleSpec(name, loader, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> None:
        """An ordinary module."""

    def exec_module(self, module: ModuleType) -> None:
        """Runs a module's code."""
        assert module.__spec__ is not None
        path = module.__spec__.origin
        if path is not None:
            module.__file__ = self._program.file_of(path)
            exec(self._program.code(path), module.__dict__)

    def invalidate_caches(self) -> None:
        """Nothing is cached."""


def _split(main: str, text: str) -> dict[str, str]:
    """Sources by path, the main module first; `main` is the path of a single one."""
    if not text.startswith(MARK):
        return {main: text.removeprefix(BOM)}
    parts = text.removeprefix(MARK).split("\0")
    return {path: text.removeprefix(BOM) for path, text in zip(*[iter(parts)] * 2, strict=True)}
