"""The result of a program whose `main` returns nothing, as Pie 0.4 has it."""

from __future__ import annotations

from typing import Any

_values: list[Any] = []


def set_return(value: Any) -> None:
    """Sets the result of the program, for a `main` that returns None."""
    _values[:] = [value]


def returned(answer: Any) -> Any:
    """The result: what `main` returned, or what was set."""
    return _values[0] if answer is None and _values else answer
