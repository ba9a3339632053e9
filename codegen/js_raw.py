"""The contract for JavaScript and TypeScript programs: `raw.ts`, its awaitable form, and types of
what it imports.
"""

from __future__ import annotations

import re

from codegen.comments import (
    awaitable,
    awaited_doc,
    awaited_steps,
    awaited_type,
    spell,
)
from codegen.source import GenerateError, imported, notice, ok_type, pascal
from pie_py.build.wit import Function, Type, contract

_RAW = """
/**
 * The contract as it is: one function each, on plain numbers and lists.
 *
 * `Context` and `Generator` are built from it; call it directly for what those do not offer.
 * Handles are numbers. Pages and embeds are passed as spans, a flat list
 * `[start, count, start, count, ...]`. A function that takes time returns the handle of a future:
 * `await ready(future)`, then consume it with the `take` function that its documentation names.
 *
 * Every function throws `PieError` for the codes that its documentation lists, and TypeError or
 * RangeError for arguments that are not of the types given.
 */

%s
import { asBool, asBytes, asInteger, asCase, asTexts, asText, asU32, asU32s } from "./convert.ts";
import { called, plain } from "./convert.ts";
"""

_AWAITED = """
/**
 * The contract's functions that take time, awaitable: each waits for its future and gives its
 * value. One that would block waits until there is room.
 */

import { isPieError } from "./errors.ts";
import { ready } from "./loop.ts";
import * as raw from "./raw.ts";
import type { %s } from "./raw.ts";
"""

_BINDINGS = """
// The contract's interfaces as the component's bindings offer them: they exist only in the server.
"""

_SIMPLE = {
    "bool": "boolean",
    "string": "string",
    "f32": "number",
    "f64": "number",
    "u64": "bigint",
    "s64": "bigint",
    "list<u8>": "Uint8Array",
}
_INTEGER = re.compile(r"([us])(8|16|32|64)")
_ARGUMENTS = {
    "bool": "asBool({})",
    "u32": "asU32({})",
    "string": "asText({})",
    "list<u8>": "asBytes({})",
    "list<u32>": "asU32s({})",
    "list<string>": "asTexts({})",
}
# Names that a parameter of a JavaScript function cannot have.
_RESERVED = frozenset(("arguments", "delete", "default", "function", "in", "new", "with"))


def render_raw() -> str:
    """Text of `sdk/js/src/raw.ts`."""
    imports, body = "", ""
    for interface, members in imported().items():
        name = contract().import_name(interface)
        imports += f'import * as _{camel(interface)} from "{name}";\n'
        body += f"\n// Interface `{interface}`\n"
        for enum, cases in members.enums.items():
            body += _comment(members.enum_docs[enum], "")
            body += f"export type {pascal(enum)} = {' | '.join(_quoted(cases))};\n"
        for function_name, function in members.functions.items():
            body += "\n" + _function(interface, function_name, function, members.enums)
    return notice("//") + _RAW.lstrip("\n") % imports.rstrip("\n") + body


def render_awaited() -> str:
    """Text of `sdk/js/src/awaited.ts`."""
    functions = (_awaitable(name, one, members.enums) for name, one, members in awaitable())
    enums = (pascal(enum) for members in imported().values() for enum in members.enums)
    return notice("//") + _AWAITED % ", ".join(enums) + "".join(functions)


def render_bindings() -> str:
    """Text of `sdk/js/src/bindings.d.ts`."""
    text = notice("//") + _BINDINGS
    interfaces = {**imported(), "source": contract().interfaces["source"]}
    for interface, members in interfaces.items():
        text += f'\ndeclare module "{contract().import_name(interface)}" {{\n'
        for name, function in members.functions.items():
            value, _ = ok_type(function.result)
            params = ", ".join(
                f"{_parameter(key)}: {_taken(of, members.enums)}" for key, of in function.params
            )
            returns = "void" if value is None else _returned(value)
            text += f"  export function {camel(name)}({params}): {returns};\n"
        text += "}\n"
    return text


def camel(name: str) -> str:
    """A name of the contract as JavaScript writes it: `take-text` is `takeText`."""
    first, *others = name.split("-")
    return first + "".join(part.title() for part in others)


def _function(
    interface: str, name: str, function: Function, enums: dict[str, tuple[str, ...]]
) -> str:
    value, fallible = ok_type(function.result)
    params = ", ".join(f"{_parameter(key)}: {_accepted(of, enums)}" for key, of in function.params)
    arguments = ", ".join(_argument(_parameter(key), of, enums) for key, of in function.params)
    returns = "void" if value is None else _type(value, enums)
    call = f"_{camel(interface)}.{camel(name)}({arguments})"
    if value is not None and _has_lists(value):
        call = f"plain({call}) as {returns}"
    if value is not None:
        call = f"return {call}"
    lines = [f"export function {camel(name)}({params}): {returns} {{"]
    if fallible:
        lines += ["  try {", f"    {call};", "  } catch (error) {", "    throw called(error);"]
        lines += ["  }"]
    else:
        lines += [f"  {call};"]
    return _comment(function.doc, "") + "\n".join([*lines, "}"]) + "\n"


def _awaitable(name: str, function: Function, enums: dict[str, tuple[str, ...]]) -> str:
    """A function that waits for room and for the value of its future."""
    params = ", ".join(
        f"{_parameter(key)}: {_accepted(of, enums).replace('Iterable', 'ReadonlyArray')}"
        for key, of in function.params
    )
    steps, wait = awaited_steps(name, function, _parameter, "const ")
    steps = [f"{step};" for step in steps]
    if wait:
        steps = ["for (;;) {", "  try {", *(f"    {step}" for step in steps), "  } catch (error) {"]
        steps += ['    if (!isPieError(error, "would-block")) throw error;', "  }"]
        steps += [f"  {wait};", "}"]
    value = awaited_type(function)
    returns = "void" if value is None else _type(value, enums)
    head = f"export async function {camel(name)}({params}): Promise<{returns}> {{"
    body = "\n  ".join([head, *steps])
    doc = awaited_doc(function).replace("Errors: ", "@throws PieError ")
    return f"\n{_comment(doc, '')}{body}\n}}\n"


def _has_lists(of: Type) -> bool:
    """True if a value has a list, which comes as the bindings have it."""
    return of.name in ("list", "tuple")


def _type(of: Type, enums: dict[str, tuple[str, ...]]) -> str:
    """The type of a value."""
    if str(of) in _SIMPLE:
        return _SIMPLE[str(of)]
    if _INTEGER.fullmatch(of.name):
        return "number"
    if of.name in enums:
        return " | ".join(_quoted(enums[of.name]))
    inner = [_type(each, enums) for each in of.arguments if each is not None]
    if of.name == "list":
        return f"{inner[0]}[]"
    if of.name == "tuple":
        return f"[{', '.join(inner)}]"
    raise GenerateError(f"JavaScript programs have no type for {of}")


def _taken(of: Type, enums: dict[str, tuple[str, ...]]) -> str:
    """The type of a parameter of the bindings."""
    return "Uint32Array" if str(of) == "list<u32>" else _type(of, enums)


def _returned(of: Type) -> str:
    """The type of a result of the bindings."""
    return "unknown" if _has_lists(of) else _type(of, {})


def _accepted(of: Type, enums: dict[str, tuple[str, ...]]) -> str:
    """The type of a parameter: any iterable is good enough for a list."""
    if of.name in enums:
        return pascal(of.name)
    if of.name == "list" and str(of) not in _SIMPLE:
        element = of.arguments[0]
        assert element is not None
        return f"Iterable<{_type(element, enums)}>"
    if str(of) == "u64":
        return "bigint | number"
    return _type(of, enums)


def _argument(value: str, of: Type, enums: dict[str, tuple[str, ...]]) -> str:
    """The expression that checks an argument and makes it what the bindings take."""
    if str(of) in _ARGUMENTS:
        return _ARGUMENTS[str(of)].format(value)
    if integer := _INTEGER.fullmatch(of.name):
        bits = int(integer[2])
        low, high = (0, 2**bits) if integer[1] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        checked = f"asInteger({value}, {low}n, {high}n)"
        return checked if bits == 64 else f"Number({checked})"
    if of.name in enums:
        return f"asCase({value}, [{', '.join(_quoted(enums[of.name]))}])"
    if of.name == "list" and (element := of.arguments[0]) is not None and element.name == "tuple":
        parts = [each for each in element.arguments if each is not None]
        names = ("first", "second", "third", "fourth")[: len(parts)]
        made = (_argument(*each, enums) for each in zip(names, parts, strict=True))
        kind = _type(element, enums)
        return f"Array.from({value}, ([{', '.join(names)}]): {kind} => [{', '.join(made)}])"
    raise GenerateError(f"no argument of a JavaScript program can be a {of} yet")


def _parameter(name: str) -> str:
    written = camel(name)
    return f"{written}_" if written in _RESERVED else written


def _quoted(cases: tuple[str, ...]) -> list[str]:
    return [f'"{case}"' for case in cases]


def _comment(doc: str, indent: str) -> str:
    if not doc:
        return ""
    lines = spell(doc, write=camel).split("\n")
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    inner = "".join(f"{indent} * {line}".rstrip() + "\n" for line in lines)
    return f"{indent}/**\n{inner}{indent} */\n"
