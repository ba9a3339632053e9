"""Values of calls as a record has them, and back (`pie_py.wire.record` is the form)."""

from __future__ import annotations

import base64
import json
from typing import Any

from pie_control.wasm import U8_LIST, List, Tuple, Type


def text_of(value: Any) -> str:
    """A value as a record has it; equal values have equal texts."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def call_line(name: str, args: str, ms: float, what: str, value: Any) -> str:
    """The line of a call: its arguments, as `text_of` made them, and what came of it."""
    return f'{{"call":"{name}","args":{args},"{what}":{text_of(value)},"ms":{ms}}}\n'


def typed(value: Any, of: Type | None) -> Any:
    """A value of a record as the contract's type wants it."""
    if of is None:
        return None
    if of == U8_LIST:
        return base64.b64decode(value)
    match of:
        case List(element):
            return [typed(one, element) for one in value]
        case Tuple(elements):
            pairs = zip(value, elements, strict=True)
            return tuple(typed(one, element) for one, element in pairs)
    return value


def _plain(value: Any) -> Any:
    """What JSON has no form for."""
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    return value.tolist()  # arrays and numbers of NumPy, and Python's own arrays
