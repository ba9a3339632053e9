"""Leaves out of a request what asks for nothing.

Clients send whole objects: most of the fields are empty, and many are of other servers.
"""

from __future__ import annotations

from typing import Any

from msgspec.inspect import ListType, NoneType, StructType, Type, UnionType


def leave_out_nothing(value: Any, kind: Type) -> None:
    """Takes out of the objects of a body the fields that ask for nothing.

    Which ones these are depends on the schema: an empty list in a schema of JSON, or in the
    arguments of a call, stays. What asks for something stays, so that it is refused by its name.

    Args:
        value: the body; it is changed.
        kind: what it should be.
    """
    if isinstance(kind, UnionType):
        for each in kind.types:
            leave_out_nothing(value, each)
    elif isinstance(kind, ListType) and isinstance(value, list):
        for item in value:
            leave_out_nothing(item, kind.item_type)
    elif isinstance(kind, StructType) and isinstance(value, dict) and _is_of(value, kind):
        _leave_out_fields(value, kind)


def _is_of(value: dict[str, Any], kind: StructType) -> bool:
    return kind.tag_field is None or value.get(kind.tag_field) == kind.tag


def _leave_out_fields(value: dict[str, Any], kind: StructType) -> None:
    fields = {field.encode_name: field for field in kind.fields}
    for name in value.keys() - {kind.tag_field}:
        field = fields.get(name)
        if field is None or isinstance(field.type, NoneType):
            if asks_for_nothing(value[name]):
                del value[name]
        elif value[name] is None and not field.required:
            del value[name]
        else:
            leave_out_nothing(value[name], field.type)


def asks_for_nothing(value: Any) -> bool:
    """Whether a value is empty, or says `none` or `disabled`.

    `false` and 0 are not among these: `enable_thinking: false` asks for much.
    """
    rest = [value]
    while rest:
        each = rest.pop()
        if isinstance(each, dict):
            rest += each.values()
        elif each not in (None, "", "none", "disabled", []):
            return False
    return True
