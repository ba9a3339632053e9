"""Functions of the language that constants have as well, or that call functions of the text."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from pie_py.device_programs.language import Mistake
from pie_py.device_programs.recording import Recording, Tensor, check_known
from pie_py.device_programs.scope import Function, Scope

_MOST_ITEMS = 4096  # of a list, or turns of a `range`


class Caller(Protocol):
    """The reader of the text."""

    recording: Recording

    def call(self, function: Function, values: Sequence[Any]) -> Any:
        """Calls a function of the text."""

    def items(self, value: Any, node: ast.AST, scope: Scope) -> Iterator[Any]:
        """The elements of a list, or the rows of a tensor of a known size."""


# What has to call functions of the text, or is of constants as well: each takes the reader first.


def _fold(reader: Caller, function: Any, first: Any, items: Any) -> Any:
    """Folds a function over `first` and one value after the other; recorded for each of them."""
    if not isinstance(function, Function):
        raise Mistake("fold takes a function, a first value, and a tensor or a list")
    found = first
    for one in reader.items(items, function.node, function.scope):
        found = reader.call(function, [found, one])
    return found


def _of_constants(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Python's, of constants alone."""

    def call(reader: Caller, *values: Any, **named: Any) -> Any:
        check_known(*values, *named.values())
        if any(isinstance(one, Tensor) for one in (*values, *named.values())):
            raise Mistake(f"{function.__name__} takes constants, and was given a tensor")
        found = function(*values, **named)
        if isinstance(found, range | enumerate | zip | reversed):
            found = _bounded(found)
        return found

    return call


def _bounded(items: Any) -> list[Any]:
    found: list[Any] = []
    for one in items:
        if len(found) >= _MOST_ITEMS:
            raise Mistake(f"more than {_MOST_ITEMS} elements")
        found.append(list(one) if isinstance(one, tuple) else one)
    return found


def _least(operation: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """`min` and `max`, of two tensors as well."""

    def call(reader: Caller, *values: Any, **named: Any) -> Any:
        if len(values) == 2 and any(isinstance(one, Tensor) for one in values):
            return reader.recording.add(operation, *values)
        return _of_constants(plain)(reader, *values, **named)

    return call


def _length(reader: Caller, value: Any) -> Any:
    if isinstance(value, list | dict | str):
        return len(value)
    if not isinstance(value, Tensor):
        raise Mistake(f"{value!r:.40} has no length")
    return value.size


def _absolute(reader: Caller, value: Any) -> Any:
    check_known(value)
    return reader.recording.add("abs", value) if isinstance(value, Tensor) else abs(value)


def _is_constant(reader: Caller, value: Any) -> bool:
    """True for what is known while the text is read: no tensor."""
    return not isinstance(value, Tensor)


BUILT_IN: dict[str, Callable[..., Any]] = {
    "fold": _fold,
    "min": _least("minimum", min),
    "max": _least("maximum", max),
    "len": _length,
    "abs": _absolute,
    "is_constant": _is_constant,
    **{
        one.__name__: _of_constants(one)
        for one in (range, enumerate, zip, reversed, int, float, bool, round)
    },
}
