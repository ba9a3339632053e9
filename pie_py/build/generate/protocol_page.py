"""The tables of methods in `docs/protocol.md`, from `pie_py/wire/methods.py`."""

from __future__ import annotations

import re
from typing import Any

from pie_py.build.generate.source import REPOSITORY, field_comments, notice
from pie_py.wire.methods import OF_ALL_NODES, OF_GATEWAYS, OF_INSTANCES, Method, name_of

_PAGE = REPOSITORY / "docs" / "protocol.md"


def render() -> str:
    """Text of the page: what it has, with its tables made again."""
    mark = notice("<!--", "pie_py/wire/methods.py", " -->")
    tables = iter((OF_ALL_NODES + OF_INSTANCES, OF_GATEWAYS))
    return re.sub(
        re.escape(mark) + r"\n(.*\n)(?:\|.*\n)*",
        lambda found: f"{mark}\n{found[1]}|---|---|---|\n" + "".join(map(_row, next(tables))),
        _PAGE.read_text(encoding="utf-8"),
    )


def _row(method: type[Method[Any]]) -> str:
    value = " ".join((method.__doc__ or "").split()).removesuffix(".")
    notes: dict[str, str] = {}
    for one in reversed(method.__mro__):
        notes |= field_comments(one) if issubclass(one, Method) else {}
    params = [f"`{name}`: {notes[name]}".removesuffix(": ") for name in method.__struct_fields__]
    joint = "; " if any(notes.values()) else ", "
    return f"| `{name_of(method)}` | {joint.join(params)} | {value} |\n"
