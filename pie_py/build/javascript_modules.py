"""Reads a JavaScript program from disk: a file, and the modules beside it that it imports.

The imports are found by their looks, also in comments and texts: a module too many does no harm.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from pie_py.wire.javascript import ENDINGS
from pie_py.wire.modules import BadProgram

MAINS = ("main.js", "main.ts", "main.mjs")
# `from "./a.js"`, `import "./a.js"`, `import("./a.js")`, `require("./a.js")`
_IMPORT = re.compile(rb"""\b(?:from|import|require)\s*\(?\s*(["'])(\.{1,2}/[^"'\n]+)\1""")


def main_of(folder: Path) -> Path | None:
    """The main module of a folder; None if it has none in JavaScript."""
    return next((folder / name for name in MAINS if (folder / name).is_file()), None)


def read_javascript(main: Path) -> dict[str, bytes]:
    """Sources of a program by path, the main module first.

    Paths are those within the folder of the main module, or, where a module lies above it, of the
    folder that holds them all. Raises `BadProgram`: a module that is imported is not there. Raises
    `OSError`: a file cannot be read.
    """
    main = main.resolve()
    found = {main: main.read_bytes()}
    unread = [main]
    while unread:
        importer = unread.pop()
        source = found[importer]
        for match in _IMPORT.finditer(source):
            name = match[2].decode("utf-8", "replace")
            file = _find(importer, name)
            if file is None:
                line = source[source.rfind(b"\n", 0, match.start()) + 1 : match.start()]
                if line.lstrip().startswith((b"//", b"/*", b"*")):
                    continue  # a comment, most likely; else the server says what is missing
                raise BadProgram(
                    f"{importer.name} imports {name!r}, and there is no such module beside it"
                )
            if file not in found:
                found[file] = file.read_bytes()
                unread.append(file)
    root = main.parent
    while not all(file.is_relative_to(root) for file in found):
        root = root.parent
    return {file.relative_to(root).as_posix(): text for file, text in found.items()}


def _find(importer: Path, name: str) -> Path | None:
    place = importer.parent / PurePosixPath(name)
    plain = [Path(f"{place}{ending}") for ending in ("", *ENDINGS)]
    indexes = [place / f"index{ending}" for ending in ENDINGS]
    for file in (*plain, *indexes, place.with_suffix(".ts")):
        if file.is_file() and file.suffix in ENDINGS:
            return file.resolve()
    return None
