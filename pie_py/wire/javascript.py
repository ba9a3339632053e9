"""A JavaScript program as one string of bytes, the form in which it is uploaded.

A mark, then for each module a NUL, its path, a NUL and its source, the main module first::

    NUL javascript  NUL app.js NUL <source>  NUL tools/web.ts NUL <source>

No source contains NUL. Modules end in `.js`, `.mjs` or `.ts`; the last ones are TypeScript.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pie_py.wire.modules import NAME, check_order, check_path, join, split

_MARK = b"\0javascript"
MARK = _MARK + b"\0"  # what such a program begins with
ENDINGS = (".js", ".mjs", ".ts")

_PATH = re.compile(rf"({NAME}/)*{NAME}\.(js|mjs|ts)")


def pack(modules: Mapping[str, bytes]) -> bytes:
    """The bytes of a program of sources by path, such as `tools/web.js`; the main module first.

    Raises:
        BadProgram: a source has a NUL, a path is no module's, or there is too much.
    """
    data = join(_MARK, modules, "JavaScript")
    unpack(data)
    return data


def unpack(data: bytes) -> dict[str, bytes]:
    """Sources by path, the main one first. The inverse of `pack`.

    Raises:
        BadProgram: the bytes are not what `pack` gives.
    """
    paths, sources = split(_MARK, data)
    check_order(paths)
    for path in paths:
        check_path(path, _PATH)
    return dict(zip(paths, sources, strict=True))
