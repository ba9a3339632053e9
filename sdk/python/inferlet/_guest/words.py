"""How a word of the command line becomes a value of a type that a program names."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from enum import Enum
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin, is_typeddict

Reader = Callable[[str], Any]

_TRUTHS = {"true": True, "false": False}
_OBJECTS = {dict, Mapping, MutableMapping}
_LISTS: dict[Any, Callable[[Iterable[Any]], Any]] = {
    list: list,
    Sequence: list,
    Iterable: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
}


def reader(kind: Any) -> Reader:
    """A reader of words as values of a type; it raises ValueError of a word that is none.

    Objects, and lists within lists, are written as JSON. Of another class, as `Path`, it is what
    the class makes of the word. What no word can say, as `Any`, is text.
    """
    kind = plain(kind)
    origin = get_origin(kind) or kind
    if origin in (Union, types.UnionType):
        return _first_of([reader(part) for part in get_args(kind) if part is not type(None)])
    if names := choices(kind):
        return _one_of(names)
    if is_typeddict(kind) or origin in _OBJECTS:
        return _named("JSON object", lambda word: _from_json(word, dict))
    if make := _LISTS.get(origin):
        return _named("JSON list", lambda word: make(_from_json(word, list)))
    if origin is bool:
        return _one_of(_TRUTHS)
    if origin is bytes:
        return _named("bytes", str.encode)
    if read := getattr(origin, "fromisoformat", None):  # dates and times
        return _named(origin.__name__, read)
    if isinstance(origin, type) and origin not in (str, object, Any):
        return _named(origin.__name__, lambda word: _made(origin, word))
    return str


def plain(kind: Any) -> Any:
    """A type without what is only said about it."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif isinstance(kind, NewType):
            kind = kind.__supertype__
        elif isinstance(kind, types.UnionType) or get_origin(kind) is Union:
            parts = [part for part in get_args(kind) if part is not type(None)]
            if len(parts) != 1:
                return kind
            kind = parts[0]
        else:
            return kind


def choices(kind: Any) -> dict[str, Any]:
    """The words of a type that has only few values, and the values; none of another type."""
    if get_origin(kind) is Literal:
        return {str(value): value for value in get_args(kind)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return dict(kind.__members__)
    return {}


def collection(kind: Any) -> Callable[[Iterable[Any]], Any] | None:
    """A function that makes a value of several words; None of a type that takes one."""
    kind = plain(kind)
    return _LISTS.get(get_origin(kind) or kind)


def item(kind: Any) -> Any:
    """The type of a collection's word: its items', or one of theirs; text by default."""
    parts = [part for part in get_args(plain(kind)) if part is not Ellipsis]
    return Union[tuple(parts)] if parts else str  # noqa: UP007 - they are known when it runs


def _one_of(values: Mapping[str, Any]) -> Reader:
    def read(word: str) -> Any:
        if word not in values:
            raise ValueError(word)
        return values[word]

    return _named(f"choice (one of {', '.join(values)})", read)


def _first_of(readers: Sequence[Reader]) -> Reader:
    ordered = sorted(readers, key=lambda one: one is str)  # which takes every word

    def read(word: str) -> Any:
        for one in ordered:
            with suppress(ValueError):
                return one(word)
        raise ValueError(word)

    return _named(" or ".join(one.__name__ for one in ordered), read)


def _made(kind: type, word: str) -> Any:
    try:
        return kind(word)
    except Exception as error:
        raise ValueError(word) from error


def _from_json(word: str, kind: type) -> Any:
    value = json.loads(word)
    if not isinstance(value, kind):
        raise ValueError(word)
    return value


def _named(name: str, read: Reader) -> Reader:
    """The name stands in the error of a word that cannot be read."""

    def named(word: str) -> Any:
        return read(word)

    named.__name__ = name
    return named
