"""A program's `main` as a function that is sent, to be called with the fields of an object."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pie_py.build.modules import read_modules
from pie_py.client.remote.reach import guest_modules
from pie_py.client.remote.values import dumps
from pie_py.config.printable import printable
from pie_py.wire.modules import BadProgram, pack

MODULE = "batched"  # what the program's main module is called in the inferlet


class Main:
    """A Python program, as `Sender` sends it."""

    name = "main"
    types: Mapping[str, type] = {}  # no types of the program are known here: results are plain JSON
    streams = False  # `main` returns

    def __init__(self, path: Path, name: str) -> None:
        """Reads a source, or a folder. Raises `BadProgram`, `OSError`: as `read_program`."""
        main, *others = read_modules(path).items()
        self._folder = path if path.is_dir() else path.parent
        self._main = main[0]
        self._names = {main[0], *(name for name, _ in others)}
        modules = guest_modules()
        if taken := {f"{MODULE}.py", *modules}.intersection(name for name, _ in others):
            raise BadProgram(f"{min(taken)} beside {path} has the name of a module of batches")
        self._program = pack({**modules, f"{MODULE}.py": main[1], **dict(others)})
        # What it is called on the server, where the program itself may be, too.
        self.program_name = f"batch-{name}"[:64]
        # True if `main` is asynchronous: then others can go on while it waits.
        self.waits = _is_asynchronous(main[1])

    def encoded(self, value: Any, what: str) -> str:
        """JSON as it travels."""
        return dumps(value, what, lambda kind: kind.__name__)

    def program(self) -> bytes:
        """The program that is uploaded."""
        return self._program

    def request(self) -> dict[str, Any]:
        """The facts for the program beside the arguments."""
        none: dict[str, Any] = {"imports": {}, "aliases": {}, "given": {}, "models": {}}
        pieces = [f"{MODULE}.py"]
        return {**none, "module": MODULE, "pieces": pieces, "entry": "main", "of_fields": True}

    def origin(self, file: str) -> str:
        """The file that a file of the inferlet's tracebacks comes from."""
        path = file.removeprefix(f"{self.program_name}/")
        path = self._main if path == f"{MODULE}.py" else path
        return str(self._folder / path) if path in self._names else f"<inferlet {printable(path)}>"


def _is_asynchronous(source: bytes) -> bool:
    """True if a module defines `main` with `async def`."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # the server says what is wrong with it, and where
    return any(isinstance(each, ast.AsyncFunctionDef) and each.name == "main" for each in body)
