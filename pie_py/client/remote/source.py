"""Finds the source of functions and classes, and cuts it out of its file line by line.

What is cut out keeps its lines: the rest of the file becomes empty lines. So a traceback in the
inferlet names the lines of the caller's file.
"""

from __future__ import annotations

import ast
import copy
import linecache
import re
import symtable
import sys
from functools import lru_cache
from types import FunctionType
from typing import Any

from pie_py.client.remote.values import CannotTravel

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
LAMBDA = "_lambda"  # what a lambda is called in the inferlet


class Excerpt:
    """Lines of one file, where they were."""

    def __init__(self, file: str) -> None:
        self._source = linecache.getlines(file)
        self._lines: dict[int, str] = {}
        self._starts: set[int] = set()  # of what was cut out

    def add(self, node: ast.stmt | ast.Lambda, without: list[ast.expr]) -> None:
        """Cuts a statement out, but for some of its decorators; or a lambda, which gets a name."""
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)])
        last = node.end_lineno or first
        lines = {n: self._source[n - 1].rstrip("\n") for n in range(first, last + 1)}
        if isinstance(node, ast.Lambda):
            text = ast.get_source_segment("".join(self._source), node)
            lines = dict(enumerate(f"{LAMBDA} = ({text})".split("\n"), first))
        for one in without:
            for n in range(one.lineno, (one.end_lineno or one.lineno) + 1):
                lines[n] = ""
        self._lines |= lines
        self._starts.add(min(n for n, text in lines.items() if text))

    def text(self) -> str:
        """The file with nothing but what was cut out. What stood deeper stands in an `if`."""
        lines = [self._lines.get(n, "") for n in range(1, max(self._lines) + 1)]
        for start in self._starts:
            if lines[start - 1][:1].isspace() and not lines[start - 2].strip():
                lines[start - 2] = "if 1:"
        return "\n".join(lines) + "\n"


def file_of(thing: FunctionType | type) -> str:
    """The file that has the source. Raises `CannotTravel`: there is none."""
    if isinstance(thing, FunctionType):
        return thing.__code__.co_filename
    own = getattr(sys.modules.get(thing.__module__), "__file__", None)
    files = [own] if own else list(reversed(list(linecache.cache)))
    for file in files:
        if f"class {thing.__name__}" in "".join(linecache.getlines(file)):
            return str(file)
    raise CannotTravel(f"the source of the class {thing.__name__} cannot be found")


def definition(thing: FunctionType | type) -> Definition:
    """The syntax tree of a function or a class. Raises `CannotTravel`: its source cannot be found,
    or it is one of several lambdas of a line.
    """
    file = file_of(thing)
    nodes = [node for node in ast.walk(parsed(file, thing.__name__)) if _is_of(node, thing)]
    if not nodes:
        raise CannotTravel(
            f"the source of {thing.__name__} is not at {_place(thing, file)} any more: run it again"
        )
    if len(nodes) > 1 and isinstance(nodes[0], ast.Lambda):
        raise CannotTravel(f"{_place(thing, file)} has several lambdas: write one on each line")
    found: Any = nodes[-1]  # of classes that are defined twice the later one counts
    return found  # type: ignore[no-any-return]


@lru_cache(64)
def _tree(source: str) -> ast.Module:
    return ast.parse(source)


def parsed(file: str, what: str) -> ast.Module:
    """The syntax tree of a file. Raises `CannotTravel`: there is no source."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    if not lines:
        raise CannotTravel(
            f"{what} has no source ({file}): write it in a file or a notebook; Python's own prompt"
            " keeps sources from version 3.13 on, and IPython's always does"
        )
    return _tree("".join(lines))


def names_used(node: ast.AST) -> set[str]:
    """Names from outside of a statement that it uses when it runs, annotations apart."""
    bare = _Bare().visit(copy.deepcopy(node))
    text = ast.unparse(bare)
    tables = [symtable.symtable(text, "<names>", "exec")]
    found: set[str] = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found.update(
            one.get_name()
            for one in table.get_symbols()
            if one.is_referenced() and (one.is_global() or table.get_type() == "module")
        )
    return found


class _Bare(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _is_of(node: ast.AST, thing: FunctionType | type) -> bool:
    if isinstance(thing, type):
        return isinstance(node, ast.ClassDef) and node.name == thing.__name__
    line = thing.__code__.co_firstlineno
    if isinstance(node, ast.Lambda):
        return thing.__name__ == "<lambda>" and node.lineno == line
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return node.name == thing.__name__ and line in (first, node.lineno)


def _place(thing: FunctionType | type, file: str) -> str:
    line = thing.__code__.co_firstlineno if isinstance(thing, FunctionType) else "?"
    return re.sub(r":\?$", "", f"{file}:{line}")
