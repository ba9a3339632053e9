"""The table of functions of the conformance program in Rust: `tests/conformance/rust`."""

from __future__ import annotations

from codegen.source import GenerateError, imported, notice, pascal, snake
from pie_py.build.wit import Function, Interface, Type

_HEAD = """
//! The contract's functions by name, as the SDK has them: one line each.

use std::time::Duration;

use inferlet::json::Value;
use inferlet::{%s};
use inferlet::{Error, Result};

use crate::arguments::{lent, Arguments};
use crate::results::Reply;

/// Calls a function; its result as JSON.
pub fn call(name: &str, values: &[Value]) -> Result<String> {
    let a = Arguments(values);
    match name {
"""
_TAIL = """        other => Err(Error::other(format!("the SDK has no function {other}"))),
    }
}
"""
_ENUM = """
fn %s(name: &str) -> Result<%s> {
    match name {
%s        other => Err(Error::other(format!("{other} is no %s"))),
    }
}
"""

# The SDK's modules that have another name than their interface.
_MODULES = {
    "input-text": "text",
    "output-text": "text",
    "encode": "text",
    "tokenize": "text",
    "input-image": "images",
}
# The SDK's functions that have another name, for the contract's name is that of one which waits.
_NAMES = {"broadcast": "try_broadcast", "push": "try_push"}
# How an argument is read; `{}` is its place.
_ARGUMENTS = {
    "bool": "a.bool({})?",
    "u32": "a.u32({})?",
    "s32": "a.number({})? as i32",
    "u64": "Duration::from_nanos(a.number({})? as u64)",
    "string": "a.text({})?",
    "list<u8>": "&a.bytes({})?",
    "list<u32>": "&a.u32s({})?",
    "list<string>": "&a.texts({})?",
    "list<tuple<string, string>>": "&a.headers({})?",
    "list<tuple<string, list<u8>>>": "&lent(&a.entries({})?)",
}


def render() -> str:
    """Text of `functions.rs`."""
    body, enums = "", ""
    for interface, members in imported().items():
        module = _module(interface)
        for name, function in members.functions.items():
            called = _NAMES.get(name, snake(name))
            arguments = _arguments(name, function, members)
            body += f'        "{name}" => {module}::{called}({arguments}).reply(),\n'
        for enum, cases in members.enums.items():
            kind = f"{module}::{pascal(enum)}"
            arms = "".join(f'        "{case}" => Ok({kind}::{pascal(case)}),\n' for case in cases)
            enums += _ENUM % (snake(enum), kind, arms, enum)
    modules = ", ".join(sorted({_module(interface) for interface in imported()}))
    return notice("//") + _HEAD % modules + body + _TAIL + enums


def _module(interface: str) -> str:
    return _MODULES.get(interface, snake(interface))


def _arguments(name: str, function: Function, members: Interface) -> str:
    return ", ".join(
        _argument(name, key, of, place, members) for place, (key, of) in enumerate(function.params)
    )


def _argument(name: str, key: str, of: Type, place: int, members: Interface) -> str:
    if of.name in members.enums:
        return f"{snake(of.name)}(a.text({place})?)?"
    # The SDK takes a time as `Duration`.
    if str(of) not in _ARGUMENTS or (str(of) == "u64" and key != "nanoseconds"):
        raise GenerateError(f"`{name}`: the conformance program cannot pass `{key}: {of}` yet")
    return _ARGUMENTS[str(of)].format(place)
