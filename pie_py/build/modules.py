"""Reads a Python program from disk: a file, and the modules beside it that it imports.

The imports are found by reading the sources, not by running them: a module that is imported under a
name computed at run time does not travel, unless some module of the program names it as well.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from pie_py.build.javascript_modules import main_of, read_javascript
from pie_py.wire import javascript
from pie_py.wire.modules import BadProgram, is_taken, pack

MAIN = "main.py"


def read_program(path: Path) -> bytes:
    """A program as the server takes it: see `pie_py.wire.modules`, and `javascript` beside it.

    Args:
        path: of its main module; or a folder, whose main module is `main.py`, `main.js` or
            `main.ts`. A component is returned as it is.

    Returns:
        The file's own bytes if it is no JavaScript and imports no module that lies beside it.

    Raises:
        BadProgram: a module lies outside of the folder, is no text, or there are too many; or the
            folder has no `main.py`.
        OSError: a file cannot be read.
    """
    main = main_of(path) if path.is_dir() and not (path / MAIN).is_file() else path
    if main is not None and main.suffix in javascript.ENDINGS:
        return javascript.pack(read_javascript(main))
    return pack(read_modules(path))


def read_modules(path: Path) -> dict[str, bytes]:
    """Sources of a program by path within its folder, the main one first; as `read_program`."""
    main = path
    if path.is_dir():
        main = path / MAIN
        if not main.is_file():
            if (path / "Cargo.toml").is_file():
                raise BadProgram(f"{path} is a Rust crate: `pie-py build` makes a component of it")
            raise BadProgram(f"{path} has no {MAIN}: it is where a folder's program begins")
        _check_inside(main, path)
    root = main.parent
    others = (file for file in root.iterdir() if file != main)
    beside = [f.stem.encode() for f in others if f.suffix == ".py" or f.is_dir()]
    found = {main.name: main.read_bytes()}
    unread = [main.name]
    while unread:
        importer = unread.pop()
        source = found[importer]
        # Most programs name nothing beside them, and reading their syntax takes long. Names are
        # normalized outside of ASCII.
        if importer == main.name and source.isascii() and not any(n in source for n in beside):
            break
        names = imported_names(source, importer)
        for name in (each for each in names if not is_taken(each.partition(".")[0])):
            for file in _files(root, name):
                module = file.relative_to(root).as_posix()
                if module not in found:
                    _check_inside(file, root)
                    found[module] = file.read_bytes()
                    unread.append(module)
    return found


def imports_in(node: ast.AST) -> Iterator[str]:
    """Modules that a program, or a part of one, imports, wherever in it."""
    for one in ast.walk(node):
        if isinstance(one, ast.Import):
            yield from (alias.name for alias in one.names)
        elif isinstance(one, ast.ImportFrom) and one.module and not one.level:
            yield one.module


def imported_names(source: bytes, path: str) -> Iterator[str]:
    """Full names of all that a module may import: `a.b` and `a.b.c` of `from a.b import c`, whose
    `c` may be a module or not. None of what is no Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the server says what is wrong with it, and where
    package = path.split("/")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            if base:
                yield ".".join(base)
            yield from (".".join([*base, alias.name]) for alias in node.names)


def _files(root: Path, name: str) -> Iterator[Path]:
    """Files that an import of this name runs: each package's `__init__.py`, and the module."""
    place = root
    for part in name.split("."):
        place = place / part
        module = place.with_name(f"{part}.py")
        if (place / "__init__.py").is_file():
            yield place / "__init__.py"
        elif module.is_file():
            yield module
            return
        elif not place.is_dir():
            return


def _check_inside(file: Path, root: Path) -> None:
    if not file.resolve().is_relative_to(root.resolve()):
        raise BadProgram(f"{file} is a link to {file.resolve()}, which is outside of {root}")
