"""Values of arguments by the schema of their function, where a model writes no types."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

MOST_STEPS = 10_000  # through a schema, which is a user's; what lies beyond allows anything
_TYPES: dict[str, set[type]] = {
    "string": {str},
    "integer": {int},
    "number": {int, float},
    "boolean": {bool},
    "array": {list},
    "object": {dict},
    "null": {type(None)},
}


def typed(name: str, text: str, schema: Mapping[str, Any], steps: Iterator[int]) -> Any:
    """The value of an argument: of another type than text where the schema of all arguments allows
    that, else the text as it stands. `steps` are those that may be taken.
    """
    found = [text, *_values(text)]
    first = (found[1:] or found)[0]
    with suppress(Exception):  # a schema that cannot be followed asks for no type
        if not _allows(schema, {name: object()}, schema, steps):
            found.sort(key=lambda value: isinstance(value, str))
            return next(each for each in found if _allows(schema, {name: each}, schema, steps))
    return first


_CHOICES = {"anyOf", "oneOf", "allOf", "$ref", "enum", "const"}


def only_text(name: str, schema: Mapping[str, Any]) -> bool:
    """True if `typed` gives every text of an argument as it stands."""
    known = schema.get("properties")
    own = known.get(name) if isinstance(known, dict) else None
    if not isinstance(own, dict) or own.get("type") != "string":
        return False
    return _CHOICES.isdisjoint(own.keys() | schema.keys())


def _values(text: str) -> Iterator[Any]:
    for read in (json.loads, ast.literal_eval):
        with suppress(Exception):
            value = read(text.strip())
            if json.loads(json.dumps(value, allow_nan=False)) == value:  # no tuple
                yield value


def _allows(schema: Any, value: Any, root: Mapping[str, Any], steps: Iterator[int]) -> bool:
    """True if a value is of a schema's types. Patterns and numbers' bounds are not looked at."""
    if not isinstance(schema, Mapping) or next(steps, None) is None:
        return schema is not False
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(type(value) in _TYPES.get(kind, {type(value)}) for kind in kinds):
        return False
    choices = [schema["const"]] if "const" in schema else schema.get("enum", [value])
    if not any(type(value) is type(each) and value == each for each in choices):
        return False
    for some in (schema.get("anyOf"), schema.get("oneOf")):
        if some and not any(_allows(each, value, root, steps) for each in some):
            return False
    rest = [(each, value) for each in schema.get("allOf", [])]
    if "$ref" in schema:
        rest.append((_referred(schema["$ref"], root), value))
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        rest += [(known.get(key, others), part) for key, part in value.items()]
    return all(_allows(each, part, root, steps) for each, part in rest)


def _referred(reference: str, root: Any) -> Any:
    """The schema that a reference within the root names."""
    for step in reference.removeprefix("#").split("/")[1:]:
        root = root[step.replace("~1", "/").replace("~0", "~")]
    return root
