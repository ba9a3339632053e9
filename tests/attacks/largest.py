"""The largest values that a schema takes: one body for each field that may be large."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import inspect

LONG = 8 << 20  # characters of a text
MANY = 100_000  # items of a list, or keys of an object


def bodies(kind: type, long: int = LONG, many: int = MANY) -> Iterator[tuple[str, Any]]:
    """Of a structure, values in which one field is as large as can be, with the field's name."""
    of = inspect.type_info(kind)
    assert isinstance(of, inspect.StructType)
    for field in of.fields:
        for value in _large(field.type, long, many):
            others = {each.encode_name: least(each.type) for each in of.fields if each.required}
            yield field.encode_name, {**others, field.encode_name: value}


def least(of: inspect.Type) -> Any:
    """A small value."""
    match of:
        case inspect.Metadata():
            return least(of.type)
        case inspect.UnionType():
            return least(of.types[0])
        case inspect.LiteralType():
            return of.values[0]
        case inspect.StrType():
            return "a" * (of.min_length or 1)
        case inspect.IntType() | inspect.FloatType():
            return of.ge if of.ge is not None else 1
        case inspect.BoolType():
            return True
        case inspect.BytesType():
            return b"a"
        case inspect.ListType():
            return [least(of.item_type)] * max(1, of.min_length or 0)
        case inspect.DictType():
            return {}
        case inspect.StructType():
            fields = {each.encode_name: least(each.type) for each in of.fields if each.required}
            return {of.tag_field: of.tag, **fields} if of.tag_field else fields
    return None


def _large(of: inspect.Type, long: int, many: int) -> Iterator[Any]:
    match of:
        case inspect.Metadata():
            yield from _large(of.type, long, many)
        case inspect.UnionType():
            for each in of.types:
                yield from _large(each, long, many)
        case inspect.StrType():
            yield "a" * (of.max_length or long)
            yield "ä\n" * ((of.max_length or long) // 4)
        case inspect.BytesType():
            yield b"a" * long
        case inspect.ListType():
            yield [least(of.item_type)] * (of.max_length or many)
            yield from ([value] for value in _large(of.item_type, long, many))
        case inspect.DictType():
            most = of.max_length or many
            yield {f"{number}": least(of.value_type) for number in range(most)}
        case inspect.StructType():
            small = least(of)
            for field in of.fields:
                for value in _large(field.type, long, many):
                    yield {**small, field.encode_name: value}
        case inspect.AnyType() | inspect.RawType():
            yield [[]] * many
            yield {"a": [1] * many}
