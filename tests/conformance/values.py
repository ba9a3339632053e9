"""Expressions in conformance cases: arguments, and what must hold of results."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from conformance.case_files import CaseError

TOLERANCE = 1e-4  # of probabilities, computed in fp32
SHORT = 256  # items of an argument that are written out though all are the same


class NotYetKnown(Exception):
    """A value is needed that only the answer to earlier calls will tell."""


def _needed(*_: object) -> Any:
    raise NotYetKnown


@dataclass(frozen=True)
class Reference:
    """A result that is not known yet: of call number `of` of those sent together."""

    of: int
    at: tuple[int, ...] = ()
    add: int = 0

    def json(self) -> dict[str, Any]:
        """As the interpreters read it."""
        return {"of": self.of, "at": list(self.at), "add": self.add}

    def __add__(self, number: Any) -> Reference:
        return replace(self, add=self.add + number) if isinstance(number, int) else _needed()

    def __getitem__(self, index: int) -> Reference:
        return replace(self, at=(*self.at, index))

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __floordiv__ = __pow__ = _needed
    __neg__ = __bool__ = _needed


class _Prepared(ast.NodeTransformer):
    """Compares values as results have them; functions are apart from names, and take no
    references.
    """

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        node.left, *node.comparators = (_called("plain", s) for s in (node.left, *node.comparators))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = ast.unparse(node.func)
        args = [_called("settled", self.visit(one)) for one in node.args]
        return ast.Call(ast.parse(f"functions[{name!r}]", mode="eval").body, args, [])


def _called(name: str, argument: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def evaluate(node: ast.expr, names: Mapping[str, Any], functions: Mapping[str, Any]) -> Any:
    """The value of an expression. Lists, tuples and bytes stay what they are.

    Raises:
        NotYetKnown: it needs the value of a `Reference`.
        CaseError: it names what is not there.
    """
    whole = ast.fix_missing_locations(ast.Expression(_Prepared().visit(deepcopy(node))))
    scope = {"functions": functions, "plain": plain, "settled": settled, "__builtins__": {}}
    try:
        return eval(compile(whole, "case", "eval"), {**scope, **names})
    except NameError as error:
        raise CaseError(str(error)) from error


def settled(value: Any) -> Any:
    """A value without references in it.

    Raises:
        NotYetKnown: there are some.
    """
    if isinstance(value, Reference):
        raise NotYetKnown
    if isinstance(value, list | tuple):
        return type(value)(settled(item) for item in value)
    return value


def plain(value: Any) -> Any:
    """A value as results have it: bytes and tuples are lists. Raises NotYetKnown of a reference."""
    if isinstance(value, Reference):
        raise NotYetKnown
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def argument(value: Any) -> Any:
    """A value as the interpreters read it."""
    match value:
        case Reference():
            return value.json()
        case str() | bytes() | list() if len(value) > SHORT and len(set(value)) == 1:
            return {"repeat": argument(value[:1]), "times": len(value)}
        case bytes():
            return {"bytes": list(value)}
        case tuple():
            return {"tuple": [argument(item) for item in value]}
        case list():
            return [argument(item) for item in value]
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two distributions over the whole vocabulary are equal within the tolerance."""
    return difference(one, other) < TOLERANCE


def differ(one: Any, other: Any) -> bool:
    """Whether two distributions are apart by far more than rounding."""
    return difference(one, other) > 10 * TOLERANCE


def difference(one: Any, other: Any) -> float:
    """Largest difference of a token's probabilities in two distributions of the same tokens."""
    first, second = (dict(zip(tokens, shares, strict=True)) for tokens, shares in (one, other))
    if set(first) != set(second):
        raise CaseError("distributions over different tokens; ask for the whole vocabulary")
    largest: float = max(abs(first[token] - second[token]) for token in first)
    return largest


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "max": max,
    "sum": sum,
    "sorted": sorted,
    "abs": abs,
    "text": lambda data: bytes(data).decode(),
    "json": json.loads,
    "dump": json.dumps,
    "same": same,
    "differ": differ,
}
