"""A Python program of several modules as one string of bytes, the form in which it is uploaded.

A program of one module is that module's source, nothing more. A program of several modules is a
mark, then for each module a NUL, its path, a NUL and its source::

    NUL modules  NUL main.py NUL <source>  NUL helper.py NUL <source>  NUL tools/web.py NUL <source>

The main module comes first, the others follow in the order of their paths, so that one program has
one content hash. NUL separates because no Python source contains it: nothing needs an escape, and a
server or a runtime reads the form with one split.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from itertools import chain

from pie_py.config.printable import HIDDEN

MARK = b"\0modules"
SAMPLER = b"\0sampler\0"  # the mark of a sampler, with its program's text in UTF-8 after it
MOST_MODULES = 256
MOST_BYTES = 4 << 20  # of all sources together
LONGEST_PATH = 200  # characters

# Of a program, whose instances have it in their ids, and of a main module without its ending: what
# a file is called, but for a hidden one or one that looks like an option; `@` ends a cluster's ids.
NAME = rf"(?![-. ])[^/@{HIDDEN}]{{1,64}}(?<! )"
LONGEST_NAME = 200  # bytes in UTF-8: it is part of files' names

_MAIN = re.compile(rf"{NAME}\.py")
_MODULE = re.compile(r"[^\W\d]\w*(/[^\W\d]\w*)*\.py")

RUNTIME_MODULES = frozenset({"inferlet", "wit_world", "componentize_py_types", "__inferlet__"})


class BadProgram(ValueError):
    """Modules that make no program; the text says which module and why."""


def is_taken(name: str) -> bool:
    """True if a top-level module of this name is Python's or the runtime's, never a program's."""
    return name in sys.stdlib_module_names or name in RUNTIME_MODULES


def join(mark: bytes, modules: Mapping[str, bytes], language: str) -> bytes:
    """A mark and the modules after it: the main one first, the others in the order of their paths.

    Raises:
        BadProgram: a source, which is one of the language, has a NUL.
    """
    for path, text in modules.items():
        if b"\0" in text:
            raise BadProgram(f"{path} is not a {language} source (byte {text.index(0)} is NUL)")
    main, *others = modules.items()
    listed = [main, *sorted(others)]
    return b"\0".join([mark, *chain.from_iterable((path.encode(), text) for path, text in listed)])


def split(mark: bytes, data: bytes) -> tuple[list[str], list[bytes]]:
    """Paths and sources after a mark, as they stand there; nothing is said of the paths.

    Raises:
        BadProgram: the bytes are not what `join` gives, or are too many.
    """
    if len(data) > MOST_BYTES:
        raise BadProgram(f"the modules have {len(data)} bytes; {MOST_BYTES} at most")
    if not data.startswith(mark + b"\0"):
        raise BadProgram("the bytes are no list of modules")
    parts = data[len(mark) + 1 :].split(b"\0", 2 * MOST_MODULES)
    if len(parts) > 2 * MOST_MODULES:
        raise BadProgram(f"there are more than {MOST_MODULES} modules")
    if len(parts) % 2:
        raise BadProgram("the bytes are no list of modules")
    return [path.decode("utf-8", "backslashreplace") for path in parts[::2]], parts[1::2]


def check_path(path: str, pattern: re.Pattern[str]) -> None:
    """A module may have this path.

    Raises:
        BadProgram: it is too long, or not of the pattern.
    """
    if len(path) > LONGEST_PATH or not pattern.fullmatch(path):
        raise BadProgram(f"{path[:LONGEST_PATH]!r} cannot be a module's path")


def check_order(paths: list[str]) -> None:
    """The paths are those of one program, in the one order that it has.

    Raises:
        BadProgram: one comes twice, or they stand otherwise.
    """
    if paths[1:] != sorted(set(paths[1:]) - {paths[0]}):
        raise BadProgram("the modules are not in order")


def pack(modules: Mapping[str, bytes]) -> bytes:
    """The bytes of a program of sources by path, such as `tools/web.py`; the main module first.

    Raises:
        BadProgram: a source has a NUL, a path cannot be imported, or there is too much.
    """
    if len(modules) == 1:
        return next(iter(modules.values()))
    data = join(MARK, modules, "Python")
    unpack(data)
    return data


def unpack(data: bytes) -> dict[str, bytes]:
    """Sources by path of a program of several modules, the main one first. The inverse of `pack`.

    Raises:
        BadProgram: the bytes are not what `pack` gives.
    """
    paths, sources = split(MARK, data)
    if len(paths) < 2:
        raise BadProgram("the bytes are no list of modules")
    for path, pattern in zip(paths, [_MAIN, *[_MODULE] * len(paths)], strict=False):
        check_path(path, pattern)
    for path in paths[1:]:
        name = path.removesuffix(".py").partition("/")[0]
        if is_taken(name):
            raise BadProgram(f"{path} cannot be imported: {name} is a module of the Python runtime")
    check_order(paths)
    return dict(zip(paths, sources, strict=True))
