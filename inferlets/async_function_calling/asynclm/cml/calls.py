"""Function calls as models write them, in Python's syntax: read, never evaluated."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asynclm.cml.dialect import whole
from asynclm.cml.nesting import is_too_deep

LONGEST_CALL = 1 << 16  # characters


class CallError(ValueError):
    """A text that is no call; the message says why, for the model to read."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function's name and the arguments given to it, by name."""

    name: str  # may have dots
    arguments: Mapping[str, Any]


def parse_call(text: str) -> Call:
    """Reads one call. Raises `CallError` if it is none, or its arguments are not literals."""
    if len(text) > LONGEST_CALL:
        raise CallError(f"a call of {len(text)} characters; {LONGEST_CALL} at most")
    if is_too_deep(text):
        raise CallError("the call is nested too deeply, or is no call")
    error = CallError("not a call with literal arguments by name, as in name(key=value)")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise error from None
    if not isinstance(tree, ast.Call) or tree.args:
        raise error
    arguments: dict[str, Any] = {}
    for keyword in tree.keywords:
        if keyword.arg is None:
            raise error
        if keyword.arg in arguments:
            raise CallError(f"the argument {keyword.arg} is given twice")
        arguments[keyword.arg] = _literal(keyword.value)
    return Call(_dotted(tree.func, error), arguments)


def write_call(call: Call) -> str:
    """A call as a model writes it: `fetch_weather(city="Paris", day=3)`."""
    given = [f"{name}={write_literal(value)}" for name, value in call.arguments.items()]
    return f"{call.name}({', '.join(given)})"


def write_literal(value: Any) -> str:
    """A value in Python's syntax, its texts in double quotes as JSON writes them."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        pairs = (f"{write_literal(k)}: {write_literal(v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(write_literal, value)) + "]"
    return repr(value)


def write_value(value: Any) -> str:
    """A result as it stands in an interrupt: JSON; what JSON can't express is written as text."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=str)
    except (TypeError, ValueError):  # NaN, a key that is no text, a list that holds itself
        text = json.dumps(str(value), ensure_ascii=False)
    return whole(text)


def _dotted(node: ast.expr, error: CallError) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        raise error
    return ".".join([node.id, *reversed(names)])


_WORDS = {"true": True, "false": False, "null": None}  # JSON's, which models mix in


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {
            _key(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True)
        }
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError):
        raise CallError("an argument is not a literal value") from None
    if isinstance(value, str | bool | int | None) or (
        isinstance(value, float) and math.isfinite(value)
    ):
        return value
    raise CallError(f"an argument is a {type(value).__name__}, which JSON can't express")


def _key(node: ast.expr | None) -> str:
    key = None if node is None else _literal(node)
    if not isinstance(key, str):
        raise CallError("a key of an argument is not a text")
    return key
