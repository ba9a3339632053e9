"""The host's table of types: `control/pie_control/api/signatures.py`."""

from __future__ import annotations

import re

from codegen.source import (
    GenerateError,
    contract,
    format_python,
    notice,
    ok_type,
    snake,
)
from pie_py.build.wit import Function, Interface, Type

_HEAD = '''
"""Parameters and results of the contract's functions, by interface and by function."""

from __future__ import annotations

from typing import NamedTuple

from pie_control.wasm import {names}


class Signature(NamedTuple):
    """Types of a function; `fallible` if it returns `result<T, string>`, `result` is `T` then."""

    params: dict[str, Type]
    result: Type | None
    fallible: bool


'''
# Types that `pie_control.wasm` has a name for.
_NAMED = {"list<u8>": "U8_LIST", "list<u32>": "U32_LIST", "list<string>": "STRING_LIST"}
_NUMBERS = ("bool", "u8", "s32", "u32", "u64", "f32", "f64")


def render() -> str:
    """Text of the file."""
    interfaces = contract().interfaces
    enums = {name: cases for each in interfaces.values() for name, cases in each.enums.items()}
    body = "".join(
        f"{_constant(name)} = Enum({cases!r})\n" for name, cases in sorted(enums.items())
    )
    body += "\nSIGNATURES: dict[str, dict[str, Signature]] = {"
    for name, interface in interfaces.items():
        rows = (
            f"{function!r}: {_signature(types, interface)},"
            for function, types in interface.functions.items()
        )
        body += f"{name!r}: {{{''.join(rows)}}},"
    body += "}\n"
    used = set(re.findall(r"\b[A-Z]\w*", re.sub(r"'[^']*'", "", body)))
    own = {"Signature", "SIGNATURES", "None", "True", "False", *map(_constant, enums)}
    head = _HEAD.format(names=", ".join(sorted({*used, "Type"} - own)))
    return format_python(notice("#") + head + body)


def _signature(function: Function, interface: Interface) -> str:
    value, fallible = ok_type(function.result)
    params = ", ".join(f"{snake(name)!r}: {_type(of, interface)}" for name, of in function.params)
    result = None if value is None else _type(value, interface)
    return f"Signature({{{params}}}, {result}, fallible={fallible})"


def _type(of: Type, interface: Interface) -> str:
    """The expression of a type."""
    if str(of) in _NAMED:
        return _NAMED[str(of)]
    if of.name in interface.enums:
        return _constant(of.name)
    if of.name in (*_NUMBERS, "string"):
        return of.name.upper()
    if of.name in ("list", "tuple"):
        inner = ", ".join(_type(each, interface) for each in of.arguments if each is not None)
        return f"{of.name.title()}({inner})"
    raise GenerateError(f"the host has no type for {of}; pie_control/wasm/types.py must learn it")


def _constant(name: str) -> str:
    return snake(name).upper()
