"""The host's functions for Rust programs: `sdk/rust/inferlet/src/host.rs`."""

from __future__ import annotations

import re

from codegen.comments import Named, error_codes, fields, spell, taker
from codegen.source import (
    GenerateError,
    imported,
    notice,
    ok_type,
    pascal,
    snake,
)
from pie_py.build.wit import Function, Interface, Type, contract

_HEAD = """\
//! The contract as it is: a module for each interface, a function for each function.
//!
//! A function that takes time returns a future, to be awaited. The crate's modules re-export this,
//! and add what is more convenient.

#![allow(clippy::too_many_arguments)]

/// Words of the largest result, `{largest}`.
pub(crate) const AREA_WORDS: usize = {words};
"""

# Rust's type of a parameter.
_PARAMS = {
    "bool": "bool",
    "u32": "u32",
    "u64": "u64",
    "s32": "i32",
    "string": "&str",
    "list<u8>": "&[u8]",
    "list<u32>": "&[u32]",
    "list<string>": "&[&str]",
    "list<tuple<string, string>>": "&[(&str, &str)]",
    "list<tuple<string, list<u8>>>": "&[(&str, &[u8])]",
}
# The element of a list as it lies in memory, and the function that lays a slice out like that.
_LAID_OUT = {
    "list<string>": ("[usize; 2]", "texts"),
    "list<tuple<string, string>>": ("[usize; 4]", "pairs"),
    "list<tuple<string, list<u8>>>": ("[usize; 4]", "pairs"),
}
_ELEMENTS = {"string": "u8", "list<u8>": "u8", "list<u32>": "u32"}
_RESULTS = {"bool": "bool", "u32": "u32", "f32": "f32", "string": "String"}
_DIRECT = ("u64",)  # results that need no area
# Errors that are not the server's: name, spelling, meaning.
_OWN_CODES = (
    ("usage", "usage", "The inferlet was given wrong arguments."),
    ("other", "error", "An error of the inferlet's own."),
)
# What the crate takes from a future by a function of its own, as `http` has it.
_OWN = {"take-response": ("crate::http::Response", "crate::http::take_response")}


def render() -> str:
    """Text of the file."""
    functions = [each for members in imported().values() for each in members.functions.values()]
    largest = max((each.result for each in functions if each.result), key=_words)
    text = notice("//") + "\n" + _HEAD.format(largest=largest, words=_words(largest)) + _codes()
    for name, members in imported().items():
        text += "\n" + _module(name, members)
    return text


def _codes() -> str:
    """The enum of error codes, with those that are the crate's own, and their spellings."""
    listed = [*error_codes(), *_OWN_CODES]
    variants = "".join(f"    /// {doc}\n    {pascal(name)},\n" for name, _, doc in listed)
    pairs = "".join(f'    (ErrorCode::{pascal(name)}, "{code}"),\n' for name, code, _ in listed)
    return (
        "\n/// The codes of the contract. More may come.\n"
        "#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]\n#[non_exhaustive]\n"
        f"pub enum ErrorCode {{\n{variants}}}\n\n"
        "/// In the order of the enum.\n"
        f"pub(crate) const CODES: [(ErrorCode, &str); {len(listed)}] = [\n{pairs}];\n"
    )


def _module(interface: str, members: Interface) -> str:
    """A module: what is imported, and a function for each of it that is safe to call."""
    parts = [_enum(name, members) for name in members.enums]
    parts += [_record(function) for function in members.functions.values() if fields(function)]
    parts += [_wrapper(*each, members) for each in members.functions.items()]
    body = "".join("\n" + _indent(part) for part in parts)
    code = re.sub("///.*", "", body)
    helpers = "call", "nanoseconds", "pairs", "texts"
    used = [name for name in helpers if re.search(rf"\b{name}(\(|::)", code)]
    names = used[0] if len(used) == 1 else f"{{{', '.join(used)}}}"
    uses = f"    use crate::abi::{names};\n"
    for name in ("crate::error::Result", "crate::future::HostFuture", "std::time::Duration"):
        if name.rpartition("::")[2] in code:
            uses += f"    use {name};\n"
    imports = "".join(_import(name, function) for name, function in members.functions.items())
    link = contract().import_name(interface)
    return (
        f"{_doc(members.doc)}pub mod {snake(interface)} {{\n{uses}\n"
        f'    mod imports {{\n        crate::abi::imports! {{ "{link}"\n'
        f"{imports}        }}\n    }}\n{body}}}\n"
    )


def _import(name: str, function: Function) -> str:
    """The declaration of an imported function, as the canonical ABI flattens it."""
    params: list[str] = []
    for key, of in function.params:
        value = snake(key)
        if element := _element(of):
            params += [f"{value}: *const {element}", f"{value}_length: usize"]
        else:
            params.append(f"{value}: {_scalar(of)}")
    if len(params) > 16:
        raise GenerateError(f"`{name}` has {len(params)} flat parameters; the ABI passes 16")
    returns = ""
    if str(function.result) in _DIRECT:
        returns = f" -> {function.result}"
    elif function.result is not None:
        params.append("area: *mut usize")
    renamed = f'            #[link_name = "{name}"]\n' if "-" in name else ""
    return f"{renamed}            pub fn {snake(name)}({', '.join(params)}){returns};\n"


def _enum(name: str, members: Interface) -> str:
    cases = "".join(f"    {pascal(case)},\n" for case in members.enums[name])
    derived = (
        "#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]\n#[allow(missing_docs)]\n"
    )
    return f"{_doc(members.enum_docs[name])}{derived}pub enum {pascal(name)} {{\n{cases}}}\n"


def _record(function: Function) -> str:
    """The struct that a function makes of the tuple that it takes from a future."""
    name, keys = fields(function) or ("", [])
    value, _ = ok_type(function.result)
    types = value.arguments if value else ()
    # "Consumes a ready future of a token: ..." says what the record holds.
    said = function.doc.removeprefix("Consumes a ready future of ").partition("\nFields of")[0]
    body = "".join(
        f"    pub {snake(key)}: {_result(of)},\n" for key, of in zip(keys, types, strict=True) if of
    )
    derived = "#[derive(Clone, Debug, PartialEq)]\n#[allow(missing_docs)]\n"
    doc = _doc(said[0].upper() + said[1:])
    return f"{doc}{derived}pub struct {pascal(name)} {{\n{body}}}\n"


def _wrapper(name: str, function: Function, members: Interface) -> str:
    """The safe function around an imported one."""
    params = [
        f"{'time' if _is_time(key, of) else snake(key)}: {_param(of, members, key)}"
        for key, of in function.params
    ]
    arrow = _returns(function, members)
    lines = [f"{_doc(function.doc)}pub fn {snake(name)}({', '.join(params)}){arrow} {{"]
    arguments: list[str] = []
    for key, of in function.params:
        argument = snake(key)
        if str(of) in _LAID_OUT:
            lines.append(f"    let {argument} = {_LAID_OUT[str(of)][1]}({argument});")
        if _element(of):
            arguments += [f"{argument}.as_ptr()", f"{argument}.len()"]
        elif of.name in members.enums:
            arguments.append(f"{argument} as u32")
        elif of.name == "bool":
            arguments.append(f"{argument}.into()")
        else:
            arguments.append("nanoseconds(time)" if _is_time(key, of) else argument)
    head = f"imports::{snake(name)}("
    if record := fields(function):
        keys = ", ".join(map(snake, record[1]))
        lines.append(_call(head, arguments, function.result, "let taken = ", "?;"))
        lines.append(f"    let ({keys}) = taken;\n    Ok({pascal(record[0])} {{ {keys} }})")
    elif take := taker(function):
        lines.append(_call(head, arguments, function.result, "let started = ", ";"))
        lines.append(f"    HostFuture::new(started, {_taken(take, members)[1]})")
    else:
        lines.append(_call(head, arguments, function.result))
    return "\n".join(lines) + "\n}\n"


def _returns(function: Function, members: Interface) -> str:
    """A function's return type, with the arrow: a value, or a future of one."""
    if take := taker(function):
        return f" -> HostFuture<{_taken(take, members)[0]}>"
    returns = _value(function)
    if ok_type(function.result)[1]:
        returns = f"Result<{returns}>" if returns else "Result"
    return f" -> {returns}" if returns else ""


def _value(function: Function) -> str:
    if record := fields(function):
        return pascal(record[0])
    value, _ = ok_type(function.result)
    return "" if value is None else _result(value)


def _taken(of: Named, members: Interface) -> tuple[str, str]:
    """The type of a future's value, and the function that takes it."""
    if of.name in _OWN:
        return _OWN[of.name]
    home = "" if of.name in members.functions else f"super::{snake(of.interface)}::"
    value = _value(of.function) or "()"
    return f"{home}{value}" if fields(of.function) else value, f"{home}{snake(of.name)}"


def _is_time(key: str, of: Type) -> bool:
    return key == "nanoseconds" and of.name == "u64"


def _call(
    head: str, arguments: list[str], result: Type | None, before: str = "", after: str = ""
) -> str:
    """The body, or its first statement: a direct call, or one that fills an area."""
    if result is None or str(result) in _DIRECT:
        return f"    unsafe {{ {head}{', '.join(arguments)}) }}"
    arguments = [*arguments, "area"]
    call = "call::<Result<_>>" if after == "?;" else "call"  # which error it may be
    return f"    {before}{call}(|area| unsafe {{ {head}{', '.join(arguments)}) }}){after}"


def _param(of: Type, members: Interface, key: str) -> str:
    if of.name in members.enums:
        return pascal(of.name)
    if _is_time(key, of):
        return "Duration"
    if str(of) not in _PARAMS:
        raise GenerateError(f"no parameter of a Rust program can be a {of} yet")
    return _PARAMS[str(of)]


def _scalar(of: Type) -> str:
    """The flat type of what is not a list; a boolean and an enum's case are numbers."""
    return {"u64": "u64", "s32": "i32"}.get(of.name, "u32")


def _element(of: Type) -> str | None:
    """Type of a list's elements in memory; None if the type is not a list."""
    if str(of) in _LAID_OUT:
        return _LAID_OUT[str(of)][0]
    return _ELEMENTS.get(str(of))


def _result(of: Type) -> str:
    if of.name in _RESULTS or of.name in _DIRECT:
        return _RESULTS.get(of.name, of.name)
    if str(of) == "list<u8>":
        return "Vec<u8>"
    inner = [each for each in of.arguments if each is not None]
    if of.name not in ("list", "tuple") or any(each.name == "bool" for each in inner):
        raise GenerateError(f"no result of a Rust program can be a {of} yet")
    parts = ", ".join(_result(each) for each in inner)
    return f"Vec<{parts}>" if of.name == "list" else f"({parts})"


def _words(of: Type) -> int:
    """Words that a value takes where the host writes it."""
    match of.name:
        case "string" | "list":
            return 2
        case "tuple":
            return sum(_words(each) for each in of.arguments if each is not None)
        case "result":
            return 1 + max(_words(each) for each in of.arguments if each is not None)
        case _:
            return 1


def _doc(text: str) -> str:
    return "".join(f"/// {line}".rstrip() + "\n" for line in spell(text, "::").split("\n"))


def _indent(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(True))
