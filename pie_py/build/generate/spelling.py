"""Comments of the contract as documentation in another language."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from pie_py.build.generate.futures import fields
from pie_py.build.generate.source import imported, snake

_QUOTED = re.compile(r"`(?:([a-z-]+)\.)?([a-z][a-z0-9-]*)`")


def spell(doc: str, separator: str | None = None, write: Callable[[str], str] = snake) -> str:
    """A comment with the names that functions and parameters have in another language.

    `store.store-get` becomes `store_get`; with a separator, such as `::`, `store::store_get`.
    `write` writes a name of the contract; by default as Python and Rust do.
    """

    def name(found: re.Match[str]) -> str:
        interface, quoted = found.groups()
        if quoted not in names():
            return found.group()
        owner = f"{write(interface)}{separator}" if interface and separator else ""
        return f"`{owner}{write(quoted)}`"

    return _QUOTED.sub(name, doc)


@cache
def names() -> frozenset[str]:
    """All functions, parameters and fields of the contract."""
    names: set[str] = set()
    for interface in imported().values():
        for name, function in interface.functions.items():
            names |= {name, *(key for key, _ in function.params)}
            names.update((fields(function) or ("", ()))[1])
    return frozenset(names)
