"""What the SDKs have of the language of device programs.

Python has a copy of it, and methods that are an operation each; JavaScript has its table.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from pie_py.build.generate.source import format_python, notice
from pie_py.device_programs import language
from pie_py.device_programs.language import OPERATIONS, Operation, Rule

_TABLE = "device_programs/language.py"
_SIGNS = {
    **{name: name for name in ("add", "sub", "mul", "pow", "mod", "floordiv", "and", "or", "xor")},
    "div": "truediv",
    "shl": "lshift",
    "shr": "rshift",
}
_COMPARED = {"lt": "lt", "le": "le", "eq": "eq"}
_ALONE = {"neg": "__neg__", "abs": "__abs__"}
_ELSEWHERE = {"not", "minimum", "maximum", "hash"}  # `~`, and functions of their own
_HEAD = '''"""Methods of the tensors of device programs: an operation each."""

from __future__ import annotations

from typing import Any, Self


class TensorMethods:
    """What `Tensor` has of the table of operations."""

    __slots__ = ()

    def _apply(self, operation: str, *others: Any) -> Self:
        raise NotImplementedError

    def _applied_to(self, operation: str, other: Any) -> Self:
        raise NotImplementedError
'''


def render_language() -> str:
    """The language itself: the SDK imports nothing of the project."""
    text = Path(language.__file__).read_text(encoding="utf-8")
    return notice("#", _TABLE) + text


def render_methods() -> str:
    """The methods of tensors that are an operation each, and Python's operators."""
    methods = "".join(
        _method(name, operation)
        for name, operation in OPERATIONS.items()
        if name not in _ELSEWHERE and operation.rule is not Rule.OWN
    )
    transpose = _alone("transpose", OPERATIONS["transpose"])
    return format_python(notice("#", _TABLE) + _HEAD + methods + transpose)


def render_javascript() -> str:
    """The table of operations."""
    rows = "".join(_row(name, one) for name, one in OPERATIONS.items())
    return f"""{notice("//", _TABLE)}
/** An operation: how its result's type follows, letters of the kinds that it takes and gives. */
export interface Operation {{
  rule: "map" | "zip" | "reduce" | "scan" | "own";
  takes: string;
  gives: string;
  operands: number;
  attributes: number;
}}

export const OPERATIONS: Record<string, Operation> = {{
{rows}}};

/** A size: as many as the model has tokens. */
export const VOCABULARY = {language.VOCABULARY};
export const MOST_NEWEST = {language.MOST_NEWEST};
export const MOST_BESIDE = {language.MOST_BESIDE};
export const REMEMBERED = {json.dumps(list(language.REMEMBERED))};
"""


def _row(name: str, one: Operation) -> str:
    kinds = f'rule: "{one.rule.value}", takes: "{one.takes}", gives: "{one.gives}"'
    return (
        f"  {name}: {{ {kinds}, operands: {one.operands}, attributes: {len(one.attributes)} }},\n"
    )


def _method(name: str, operation: Operation) -> str:
    if operation.operands == 1:
        return _alone(name, operation)
    sign = _SIGNS.get(name) or _COMPARED[name]
    typed = "other: object" if name == "eq" else "other: Any"
    ignored = "  # type: ignore[override]" if name == "eq" else ""
    text = f"""
    def __{sign}__(self, {typed}) -> Self:{ignored}
        return self._apply("{name}", other)
"""
    if name in _SIGNS:
        text += f"""
    def __r{sign}__(self, other: Any) -> Self:
        return self._applied_to("{name}", other)
"""
    return text


def _alone(name: str, operation: Operation) -> str:
    axis = " Along the last axis." if operation.rule in (Rule.REDUCE, Rule.SCAN) else ""
    doc = textwrap.fill(f'"""{operation.doc}{axis}', 92, subsequent_indent=" " * 8)
    end = "\n        " if "\n" in doc else ""
    return f"""
    def {_ALONE.get(name, name)}(self) -> Self:
        {doc}{end}\"\"\"
        return self._apply("{name}")
"""
