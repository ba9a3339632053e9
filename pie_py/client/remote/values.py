"""Values as JSON, at the caller and in the inferlet: this file is part of the programs it sends.

Plain data is written as it is, and the rest as an object with a tag: `{"$": "bytes", "v": ...}`.
Types go by name, `module:Name`; who decodes says what a name means.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

TAG = "$"
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}

NameOf = Callable[[type], str]
TypeOf = Callable[[str], type]


class CannotTravel(TypeError):
    """Something that is no data, or code that cannot run in an inferlet; the text says why."""


def dumps(value: Any, what: str, name_of: NameOf) -> str:
    """A value as JSON. In errors it is `what`, such as "the argument n"; `name_of` gives types
    their names. Raises `CannotTravel`: it is no data, or has a part that is none.
    """
    try:
        return json.dumps(_encoded(value, what, name_of))
    except RecursionError:
        raise CannotTravel(f"{what} refers to itself, or is nested too deeply") from None


def loads(text: str, type_of: TypeOf) -> Any:
    """The value that `dumps` has written. Raises LookupError if `type_of` does not know a type."""
    return _decoded(json.loads(text), type_of)


def _encoded(value: Any, what: str, name_of: NameOf) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, enum.Enum):
        return {TAG: "enum", "t": name_of(type(value)), "v": value.name}
    if isinstance(value, bytes | bytearray | memoryview):
        return {TAG: "bytes", "v": b64encode(value).decode()}
    if isinstance(value, BaseException):
        return {
            TAG: "error",
            "t": name_of(type(value)),
            "v": _encoded([*_given(value)], f"what {what} says", name_of),
            "state": _encoded(vars(value), what, name_of),
        }
    if type(value) is list:
        return [_encoded(part, f"{what}[{i}]", name_of) for i, part in enumerate(value)]
    if type(value) in (tuple, set, frozenset):
        parts = [_encoded(part, f"an item of {what}", name_of) for part in value]
        return {TAG: type(value).__name__, "v": parts}
    if type(value) is dict:
        pairs = [
            (_encoded(key, f"a key of {what}", name_of), _encoded(v, f"{what}[{key!r}]", name_of))
            for key, v in value.items()
        ]
        if TAG not in value and all(type(key) is str for key in value):
            return dict(pairs)
        return {TAG: "dict", "v": pairs}
    names = field_names(type(value))
    if names is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise CannotTravel(
            f"{what} is a {kind}, which can't travel: JSON's values, bytes, tuples, sets, enums,"
            " dataclasses and pydantic models do"
        )
    fields = {n: _encoded(getattr(value, n), f"{what}.{n}", name_of) for n in names}
    return {TAG: "object", "t": name_of(type(value)), "v": fields}


def field_names(kind: type) -> list[str] | None:
    """The fields of a dataclass or a pydantic model; None of another type."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    fields = getattr(kind, "model_fields", None)
    return list(fields) if isinstance(fields, dict) else None


def _given(error: BaseException) -> tuple[Any, ...]:
    """The arguments of its kind of Python's own: `args` lack the file of an `OSError`."""
    return OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args  # type: ignore[return-value]


def _decoded(value: Any, type_of: TypeOf) -> Any:
    if isinstance(value, list):
        return [_decoded(part, type_of) for part in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: _decoded(part, type_of) for key, part in value.items()}
    tag, inner = value[TAG], value["v"]
    if tag == "bytes":
        return b64decode(inner)
    if tag == "enum":
        return type_of(value["t"])[inner]  # type: ignore[index]
    inner = _decoded(inner, type_of)
    if tag == "dict":
        return {key: part for key, part in inner}  # noqa: C416 - pairs are lists
    if tag == "object":
        return _made(type_of(value["t"]), inner)
    if tag == "error":
        kind = type_of(value["t"])
        error: Any = kind.__new__(kind, *inner)
        own: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
        with suppress(TypeError):  # a class of a user's may have left it out
            own.__init__(error, *inner)
        vars(error).update(_decoded(value["state"], type_of))
        return error
    return _SEQUENCES[tag](inner)


def _made(kind: type, fields: dict[str, Any]) -> Any:
    """An object as it was: a dataclass's `__post_init__` has run where it was made."""
    if not dataclasses.is_dataclass(kind):
        return kind.model_validate(fields, by_name=True)  # type: ignore[attr-defined]
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        object.__setattr__(made, field.name, fields[field.name])
    return made
