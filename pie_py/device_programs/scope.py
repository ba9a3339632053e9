"""The values of the names of a device program's text."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, NamedTuple

from pie_py.device_programs.program import ProgramFault

_LONGEST = 60  # characters of an expression that is told


class Text(NamedTuple):
    """Some source, and where it stands."""

    file: str
    line: int  # of its first line in the file, from 1 on
    text: str


class Module(NamedTuple):
    """A module that a program names: what is taken from it is a name of the language."""

    name: str

    def __repr__(self) -> str:
        return f"the module `{self.name}`"


class State:
    """The arguments of a program."""

    def __repr__(self) -> str:
        return "the state"


class InLayers(NamedTuple):
    """The arguments of the program in the layers beside it: numbers, kinds and sizes by name."""

    names: Mapping[str, tuple[int, int, list[int]]]

    def __repr__(self) -> str:
        return "what the program in the layers keeps"


class Function(NamedTuple):
    """A function of the text, and what it sees."""

    name: str
    node: ast.FunctionDef | ast.Lambda
    scope: Scope

    def __repr__(self) -> str:
        return f"the function `{self.name}`"


class Scope:
    """Names and their values, within those around."""

    def __init__(self, text: Text | None, around: Scope | None, names: dict[str, Any]) -> None:
        self.text = text  # None: of the library, whose places no error tells
        self.around = around
        self.names = names

    def find(self, name: str) -> Any:
        """The value of a name. Raises KeyError."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.around
        raise KeyError(name)

    def known(self) -> set[str]:
        """All names that it sees."""
        around = self.around.known() if self.around is not None else set()
        return around | self.names.keys()


def indent(text: str) -> int:
    """Columns that `textwrap.dedent` takes off."""
    line = next((one for one in text.splitlines() if one.strip()), "")
    return len(line) - len(line.lstrip())


def expression_of(text: Text, node: ast.AST) -> str:
    """An expression as it stands in a text, its first line at most; empty for a statement."""
    if not isinstance(node, ast.expr):
        return ""
    line = _lines(text.text)[node.lineno - 1]
    end = node.end_col_offset if node.end_lineno == node.lineno else None
    found = line.encode()[node.col_offset : end].decode()
    return found if len(found) <= _LONGEST else found[:_LONGEST] + "…"


@lru_cache(64)
def _lines(text: str) -> list[str]:
    """As Python's parser counts them: `splitlines` has more."""
    return re.split(r"\r\n?|\n", _plain(text))


def _plain(text: str) -> str:
    return textwrap.dedent(text.removeprefix("\ufeff"))


def parsed(text: Text) -> ast.Module:
    """A text's statements.

    Raises:
        ProgramFault: with the place.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(_plain(text.text))
    except SyntaxError as error:
        line, column = text.line + (error.lineno or 1) - 1, error.offset or 1
        raise ProgramFault(f"{text.file}:{line}:{column}: {error.msg}") from None
    except ValueError as error:
        raise ProgramFault(f"{text.file}: {error}") from None
    except (RecursionError, MemoryError):
        raise ProgramFault(f"{text.file}: nested too deep") from None


def meant(name: str, known: Iterable[str]) -> str:
    """A word on the name that was probably meant, if one comes near."""
    found = get_close_matches(name, [one for one in known if not one.startswith("_")], 1)
    return f"; did you mean `{found[0]}`?" if found else ""
