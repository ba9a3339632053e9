"""What the SDKs have of the language of device programs.

Python has a copy of it, and methods that are an operation each; JavaScript has its table, and Rust
both.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from codegen.source import format_python, notice
from pie_py.device_programs import language
from pie_py.device_programs.language import ATTEND, OPERATIONS, Operation, Rule

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

_RUST_HEAD = """//! The operations of device programs, and methods that are an operation each.

use std::ops;

use super::recording::record;
use super::{Tensor, Value};

/// How the type of a result follows from the operands' types.
#[derive(Clone, Copy)]
pub(super) enum Rule {
    Map,
    Zip,
    Reduce,
    Scan,
    Own,
}

/// An operation: letters of the kinds that it takes and gives, empty for those of the operands.
pub(super) struct Operation {
    pub(super) name: &'static str,
    pub(super) rule: Rule,
    pub(super) takes: &'static str,
    pub(super) gives: &'static str,
}

const fn one(
    name: &'static str,
    rule: Rule,
    takes: &'static str,
    gives: &'static str,
) -> Operation {
    Operation { name, rule, takes, gives }
}
"""
_RUST_OPERATORS = """
macro_rules! operator {
    ($trait:ident, $method:ident, $name:literal) => {
        impl<V: Into<Value>> ops::$trait<V> for Tensor {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, other: V) -> Tensor {
                record($name, &[self.into(), other.into()], &[])
            }
        }

        operator!($trait, $method, $name, f64);
        operator!($trait, $method, $name, i64);
    };
    ($trait:ident, $method:ident, $name:literal, $number:ty) => {
        impl ops::$trait<Tensor> for $number {
            type Output = Tensor;

            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                record($name, &[self.into(), other.into()], &[])
            }
        }
    };
}
"""
_RUST_SIGNS = {
    **{name: name for name in ("add", "sub", "mul", "div", "shl", "shr")},
    "mod": "rem",
    "and": "bitand",
    "or": "bitor",
    "xor": "bitxor",
}
_RUST_TRAITS = {"bitand": "BitAnd", "bitor": "BitOr", "bitxor": "BitXor"}


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
    rows = "".join(_row(name, one) for name, one in {**OPERATIONS, **ATTEND}.items())
    sizes = ", ".join(f'[{size}, "{name}"]' for size, name in language.SIZES.items())
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
/** Sizes of the stage `attend`: of queries in a layer, and of the context. */
export const HEADS = {language.HEADS};
export const TOKENS = {language.TOKENS};
export const PAGES = {language.PAGES};
export const SIZES = new Map([{sizes}]);
export const MOST_NEWEST = {language.MOST_NEWEST};
export const MOST_BESIDE = {language.MOST_BESIDE};
export const REMEMBERED = {json.dumps(list(language.REMEMBERED))};
"""


def render_rust() -> str:
    """The table of operations, and the methods and operators that are an operation each."""
    rows = "".join(_rust_row(name, one) for name, one in {**OPERATIONS, **ATTEND}.items())
    sizes = ", ".join(f'({size}, "{name}")' for size, name in language.SIZES.items())
    methods = "\n".join(
        _rust_method(name, operation)
        for name, operation in OPERATIONS.items()
        if (operation.rule is not Rule.OWN or name == "transpose")
        and name not in _RUST_SIGNS
        and name not in _ELSEWHERE
        and name != "neg"
    )
    operators = "".join(
        f'operator!({_RUST_TRAITS.get(sign, sign.title())}, {sign}, "{name}");\n'
        for name, sign in _RUST_SIGNS.items()
    )
    return f"""{notice("//", _TABLE)}{_RUST_HEAD}
pub(super) const OPERATIONS: &[Operation] = &[
{rows}];
/// A size: as many as the model has tokens.
pub const VOCABULARY: i64 = {language.VOCABULARY};
/// A size of the stage `attend`: as many as a layer has queries.
pub const HEADS: i64 = {language.HEADS};
/// A size of the stage `attend`: as many as the context has tokens.
pub const TOKENS: i64 = {language.TOKENS};
/// A size of the stage `attend`: as many as the context has pages.
pub const PAGES: i64 = {language.PAGES};
pub(super) const SIZES: &[(i64, &str)] =
    &[{sizes}];
pub(super) const MOST_BESIDE: i64 = {language.MOST_BESIDE};
pub(super) const MOST_AXES: usize = {language.MOST_AXES};
pub(super) const MOST_NEWEST: i64 = {language.MOST_NEWEST};
pub(super) const REMEMBERED: &[&str] = &{json.dumps(list(language.REMEMBERED))};

impl Tensor {{
{methods}}}
{_RUST_OPERATORS}
{operators}"""


def _rust_row(name: str, one: Operation) -> str:
    return f'    one("{name}", Rule::{one.rule.value.title()}, "{one.takes}", "{one.gives}"),\n'


def _rust_method(name: str, operation: Operation) -> str:
    axis = " Along the last axis." if operation.rule in (Rule.REDUCE, Rule.SCAN) else ""
    doc = textwrap.fill(
        operation.doc + axis, 96, initial_indent="    /// ", subsequent_indent="    /// "
    )
    other, given = "", ""
    if operation.operands == 2:
        other, given = ", other: impl Into<Value>", ", other.into()"
    return f"""{doc}
    #[track_caller]
    pub fn {name}(self{other}) -> Tensor {{
        record("{name}", &[self.into(){given}], &[])
    }}
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
