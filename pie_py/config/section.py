"""The base of every section of a server's configuration, and what may be a name in it."""

import re
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"  # of an adapter, of an MCP server
Named = TypeVar("Named")


class Section(BaseModel):
    """Fields of one subject: unknown ones are errors, and nothing changes after start."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section of a field, or of its list or table; None if the field is a value."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def check_names(named: dict[str, Named]) -> dict[str, Named]:
    """The table, where each name is one. Raises ValueError if one is not."""
    for name in named:
        if not re.fullmatch(NAME, name):
            raise ValueError(f"{name!r}: a name has letters, digits, `_`, `-`, `.`, at most 64")
    return named
