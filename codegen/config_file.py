"""The configuration file `docs/pie.toml`: every setting of a server, with its default. Git has it,
for its readers.
"""

from __future__ import annotations

import json
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from codegen.source import GenerateError, field_comments, notice
from pie_py.config.section import section_of
from pie_py.config.server import ServerConfig

PATH = "docs/pie.toml"
_HEAD = """\
# Every setting of a server, with its default. `pie-py serve --config FILE` takes such a file; write
# down only what you change. What is commented out has no value by default (None), or the machine's.
"""
_INTERNAL = {"extension", "observer"}  # set by programs
_WIDTH = 100


def render() -> str:
    """Text of the file."""
    return notice("#", "pie_py/config") + _HEAD + "".join(_section(ServerConfig, ""))


def _section(of: type[BaseModel], path: str, comment: str = "") -> Iterator[str]:
    """The lines of a section: its settings, then the sections below it.

    Args:
        of: the section's class.
        path: its name in the file; "" for the file's top.
        comment: what stands before each line of a section that is not there by default.
    """
    notes = field_comments(of)
    below = []
    for name, field in of.model_fields.items():
        if name in _INTERNAL:
            continue
        if (inner := section_of(field.annotation)) is None:
            yield from _setting(name, field.get_default(call_default_factory=True), notes, comment)
        else:
            below.append((name, inner, typing.get_origin(field.annotation)))
    for name, inner, container in below:
        place = f"{path}.{name}" if path else name
        place += ".NAME" if container is dict else ""
        hidden = "# " if container is dict or comment else ""
        head = f"[[{place}]]" if container is tuple else f"[{place}]"
        said = str(inner.__doc__).partition("\n")[0]
        if notes.get(name):
            said = f"{said.rstrip('.')}: {notes[name]}"
        yield from ("\n", *_remark(said))
        yield f"{hidden}{head}\n"
        yield from _section(inner, place, hidden)


def _setting(name: str, default: Any, notes: dict[str, str], comment: str) -> Iterator[str]:
    """A setting's line, with its remark behind it if there is room, else above.

    Raises:
        GenerateError: it has none; its unit, and what it is, must be said.
    """
    if not notes.get(name):
        raise GenerateError(f"{name} in pie_py/config has no comment, or one in its middle")
    has_value = default is not None and default is not PydanticUndefined
    if isinstance(default, Path):  # in this user's home
        has_value = False
    value = _toml(default) if has_value else "..."
    line = f"{comment if has_value else '# '}{name} = {value}"
    whole = f"{line}  # {notes[name]}"
    if len(whole) > _WIDTH:
        yield from _remark(notes[name])
        whole = line
    yield f"{whole}\n"


def _remark(text: str) -> Iterator[str]:
    for line in textwrap.wrap(text, _WIDTH - 2, break_on_hyphens=False):
        yield f"# {line}\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{}"
    return json.dumps(list(value) if isinstance(value, tuple) else value)
