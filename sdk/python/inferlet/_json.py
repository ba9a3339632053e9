"""JSON of what programs return and send: every reader reads it, in one line."""

from __future__ import annotations

import dataclasses
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Set
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}  # of lines, to some
_AS_TEXT = (Decimal, PurePath, UUID)


def dumps(value: Any, other: Callable[[Any], Any] | None = None) -> str:
    """A value as JSON. Objects with fields (dataclasses, msgspec's structs, those with `model_dump`
    as pydantic's) are objects, sets are lists, enums their values, bytes base64, dates and times
    texts of ISO 8601, durations seconds; NaN and infinity are null, as JavaScript writes them.
    `other` is asked of all else. Raises TypeError: `other` is None, and a part is nothing of this;
    ValueError: it refers to itself.
    """

    def plain(part: Any) -> Any:
        if isinstance(part, Enum):
            return part.value
        if isinstance(part, bytes | bytearray | memoryview):
            return b64encode(part).decode()
        # `datetime` is imported by programs alone: the image has its clock replaced.
        for name in ("isoformat", "total_seconds"):
            if type(part).__module__ == "datetime" and hasattr(part, name):
                return getattr(part, name)()
        if isinstance(part, _AS_TEXT):
            return str(part)
        if isinstance(part, Set):
            return list(part)
        if isinstance(part, Mapping):
            return dict(part)
        if isinstance(part, type) or (fields := _fields(part)) is None:
            if other is not None:
                return other(part)
            raise TypeError(f"Object of type {type(part).__name__} is not JSON serializable")
        return fields

    try:
        text = json.dumps(value, ensure_ascii=False, default=plain, allow_nan=False)
    except ValueError:
        known = json.loads(json.dumps(value, default=plain), parse_constant=lambda name: None)
        text = json.dumps(known, ensure_ascii=False)
    text = text.translate(_ENDS)
    # Half a surrogate pair has no UTF-8: it is escaped, as JSON may be.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _fields(part: Any) -> dict[str, Any] | None:
    if callable(dump := getattr(part, "model_dump", None)):
        found: dict[str, Any] = dump()
        return found
    names = getattr(part, "__struct_fields__", None)
    if dataclasses.is_dataclass(part):
        names = [field.name for field in dataclasses.fields(part)]
    return None if names is None else {name: getattr(part, name) for name in names}
