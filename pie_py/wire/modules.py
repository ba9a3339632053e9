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

MARK = b"\0modules"
MOST_MODULES = 256
MOST_BYTES = 4 << 20  # of all sources together
LONGEST_PATH = 200  # characters

_MAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.py")
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*\.py")

RUNTIME_MODULES = frozenset({"inferlet", "wit_world", "componentize_py_types", "__inferlet__"})


class BadProgram(ValueError):
    """Modules that make no program; the text says which module and why."""


def is_taken(name: str) -> bool:
    """Whether a top-level module of this name is Python's or the runtime's, never a program's."""
    return name in sys.stdlib_module_names or name in RUNTIME_MODULES


def pack(modules: Mapping[str, bytes]) -> bytes:
    """The bytes of a program.

    Args:
        modules: sources by path, such as `tools/web.py`; the main module first.

    Raises:
        BadProgram: a source has a NUL, a path cannot be imported, or there is too much.
    """
    main, *others = modules.items()
    if not others:
        return main[1]
    for path, text in modules.items():
        if b"\0" in text:
            raise BadProgram(f"{path} is not a Python source (byte {text.index(0)} is NUL)")
    data = b"\0".join(
        [MARK, *chain.from_iterable((p.encode(), t) for p, t in [main, *sorted(others)])]
    )
    unpack(data)
    return data


def unpack(data: bytes) -> dict[str, bytes]:
    """Sources by path of a program of several modules, the main one first. The inverse of `pack`.

    Raises:
        BadProgram: the bytes are not what `pack` gives.
    """
    if len(data) > MOST_BYTES:
        raise BadProgram(f"the modules have {len(data)} bytes; {MOST_BYTES} at most")
    if not data.startswith(MARK + b"\0"):
        raise BadProgram("the bytes are no list of modules")
    parts = data[len(MARK) + 1 :].split(b"\0", 2 * MOST_MODULES)
    if len(parts) > 2 * MOST_MODULES:
        raise BadProgram(f"there are more than {MOST_MODULES} modules")
    if len(parts) % 2 or len(parts) < 4:
        raise BadProgram("the bytes are no list of modules")
    paths = [path.decode("ascii", "backslashreplace") for path in parts[::2]]
    for path, pattern in zip(paths, [_MAIN, *[_MODULE] * len(paths)], strict=False):
        if len(path) > LONGEST_PATH or not pattern.fullmatch(path):
            raise BadProgram(f"{path[:LONGEST_PATH]!r} cannot be a module's path")
    for path in paths[1:]:
        name = path.removesuffix(".py").partition("/")[0]
        if is_taken(name):
            raise BadProgram(f"{path} cannot be imported: {name} is a module of the Python runtime")
    if paths[1:] != sorted(set(paths[1:]) - {paths[0]}):
        raise BadProgram("the modules are not in order")
    return dict(zip(paths, parts[1::2], strict=True))
