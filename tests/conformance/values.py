"""Expressions in conformance cases: arguments, and what must hold of results."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from conformance.case_files import CaseError

TOLERANCE = 1e-4  # of probabilities, computed in fp32
SHORT = 256  # items of an argument that are written out though all are the same

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}


@dataclass(frozen=True)
class Reference:
    """A result that is not known yet: of call number `of` of those sent together."""

    of: int
    at: tuple[int, ...] = ()
    add: int = 0

    def json(self) -> dict[str, Any]:
        """As the interpreters read it."""
        return {"of": self.of, "at": list(self.at), "add": self.add}


class NotYetKnown(Exception):
    """A value is needed that only the answer to earlier calls will tell."""


def evaluate(node: ast.expr, names: Mapping[str, Any], functions: Mapping[str, Any]) -> Any:
    """The value of an expression. Lists, tuples and bytes stay what they are.

    Raises:
        NotYetKnown: it needs the value of a `Reference`.
        CaseError: no expression of cases.
    """

    def of(inner: ast.expr) -> Any:
        return evaluate(inner, names, functions)

    def known(inner: ast.expr) -> Any:
        value = of(inner)
        if isinstance(value, Reference):
            raise NotYetKnown
        return value

    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            if node.id not in names:
                raise CaseError(f"nothing is called {node.id}")
            return names[node.id]
        case ast.List():
            return [of(item) for item in node.elts]
        case ast.Tuple():
            return tuple(of(item) for item in node.elts)
        case ast.Dict():
            keys = [known(key) for key in node.keys if key is not None]
            return dict(zip(keys, map(of, node.values), strict=True))
        case ast.UnaryOp(op=ast.USub()):
            return -known(node.operand)
        case ast.UnaryOp(op=ast.Not()):
            return not known(node.operand)
        case ast.BinOp(op=ast.Add()):
            left, right = of(node.left), of(node.right)
            if isinstance(left, Reference) and isinstance(right, int):
                return replace(left, add=left.add + right)
            if isinstance(left, Reference) or isinstance(right, Reference):
                raise NotYetKnown
            return left + right
        case ast.BinOp(op=ast.Sub()):
            return known(node.left) - known(node.right)
        case ast.BinOp(op=ast.Mult()):
            return known(node.left) * known(node.right)
        case ast.BinOp(op=ast.FloorDiv()):
            return known(node.left) // known(node.right)
        case ast.BinOp(op=ast.Pow()):
            return known(node.left) ** known(node.right)
        case ast.Subscript():
            value, index = of(node.value), known(node.slice)
            if isinstance(value, Reference):
                return replace(value, at=(*value.at, index))
            return value[index]
        case ast.Compare(ops=[op]):
            return _COMPARISONS[type(op)](
                plain(known(node.left)), plain(known(node.comparators[0]))
            )
        case ast.Call(func=ast.Name(id=name)):
            if name not in functions:
                raise CaseError(f"no function is called {name}")
            return functions[name](*[settled(known(item)) for item in node.args])
    raise CaseError(f"{ast.unparse(node)}: not understood")


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
    """A value as results have it: bytes and tuples are lists."""
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
