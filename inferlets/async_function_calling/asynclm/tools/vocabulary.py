"""The vocabulary of a model's program: operators, functions, methods, and values up to a size."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

MOST_ITEMS = 100_000  # of a collection, and characters of a text


class EvaluationError(Exception):
    """A program that can't be run to its end; the message says why."""


def weigh(value: Any) -> int:
    """How many items a value has, with those of its items: so long it takes to look at all.

    Raises:
        EvaluationError: too many, as of a list that holds itself.
    """
    total, rest = 0, [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            rest += [*one.keys(), *one.values()]
            total += len(one)
        elif isinstance(one, list | tuple | set | range):
            total += len(one)
            if not isinstance(one, range):
                rest += one
        elif isinstance(one, str):
            total += len(one) // 16
        check_length(max(total, len(rest)))
    return total


def check_length(length: int) -> None:
    """Refuses a value of more than `MOST_ITEMS` items.

    Raises:
        EvaluationError: it has more.
    """
    if length > MOST_ITEMS:
        raise EvaluationError(f"a value of {length} items; {MOST_ITEMS} at most")


BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


def _range(*args: int) -> range:
    found = range(*args)
    if len(found) > MOST_ITEMS:
        raise EvaluationError(f"a range of {len(found)} numbers; {MOST_ITEMS} at most")
    return found


def _sum(items: Any, start: Any) -> Any:
    numbers = list(items)
    if not all(isinstance(item, int | float) for item in (*numbers, start)):
        raise EvaluationError("`sum` is of numbers here")
    return sum(numbers, start)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "dict": dict,
    "divmod": divmod,
    "enumerate": lambda items, start=0: list(enumerate(items, start)),
    "float": float,
    "int": int,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "range": _range,
    "repr": repr,
    "reversed": lambda items: list(reversed(items)),
    "round": round,
    "set": set,
    "sorted": lambda items, reverse=False: sorted(items, reverse=reverse),
    "str": str,
    "sum": lambda items, start=0: _sum(items, start),
    "tuple": tuple,
    "zip": lambda *items: list(zip(*items, strict=False)),
    **{
        f"math.{name}": getattr(math, name)
        for name in ("ceil", "cos", "exp", "floor", "hypot", "isqrt", "log", "log2", "log10")
    },
    **{f"math.{name}": getattr(math, name) for name in ("sin", "sqrt", "tan", "atan2", "gcd")},
}
CONSTANTS = {"math.pi": math.pi, "math.e": math.e, "math.tau": math.tau}
METHODS: dict[type, str] = {
    str: "capitalize count endswith find index isalpha isdigit islower isspace isupper join lower"
    " lstrip partition removeprefix removesuffix replace rfind rpartition rsplit rstrip split"
    " splitlines startswith strip swapcase title upper",
    list: "append count extend index insert pop remove reverse sort",
    dict: "get items keys pop setdefault update values",
    set: "add difference discard intersection issubset issuperset union",
    tuple: "count index",
}
