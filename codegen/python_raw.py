"""The contract for Python programs: `inferlet.raw`, its awaitable form, and the bindings."""

from __future__ import annotations

import re

from codegen.comments import (
    awaitable,
    awaited_doc,
    awaited_steps,
    awaited_type,
    spell,
)
from codegen.source import (
    GenerateError,
    imported,
    notice,
    ok_type,
    pascal,
    snake,
)
from pie_py.build.wit import Function, Type

_RAW = '''
"""The contract's functions, which `inferlet.raw` has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

from inferlet._generated.bindings import {bindings}
from inferlet.errors import PieError
from inferlet.raw._convert import {converters}

__all__ = {names}
'''

_AWAITED = '''
"""The contract's functions that take time, awaitable: each waits for its future and returns what it
gives. One that would block waits until there is room.

If the waiting task is cancelled, so is the future.
"""

from __future__ import annotations

from collections.abc import Sequence

from inferlet import raw
from inferlet._loop import ready
from inferlet.errors import PieError
from inferlet.raw import {enums}
'''

_BINDINGS = '''
"""The contract's interfaces as the component's generated bindings offer them.

They exist only inside the server. Elsewhere (an editor, a type checker, a unit test) the same names
are there, so that the SDK imports, and the first call says what is wrong.
"""

from __future__ import annotations

from typing import Any, NoReturn

from inferlet.errors import NotInServerError


class _Absent:
    """Stands for an interface outside the server."""

    def __getattr__(self, name: str) -> Any:
        def call(*_: object) -> NoReturn:
            raise NotInServerError

        return call


try:
    from componentize_py_types import Err
    from wit_world.imports import {names}

    INSIDE = True
except ImportError:

    class Err(Exception):  # type: ignore[no-redef]
        """The error case of a contract function."""

        value: Any

{absent}
    INSIDE = False

__all__ = {exported}
'''

_SIMPLE = {"bool": "bool", "string": "str", "f32": "float", "f64": "float", "list<u8>": "bytes"}
_INTEGER = re.compile(r"([us])(8|16|32|64)")
# How an argument is made what the bindings take; `{}` is the argument.
_ARGUMENTS = {
    "bool": "bool({})",
    "u32": "as_u32({})",
    "string": "as_text({})",
    "list<u8>": "as_bytes({})",
    "list<u32>": "as_u32s({})",
    "list<string>": "as_texts({})",
}


def render_raw() -> str:
    """Text of `inferlet/raw/_functions.py`."""
    interfaces = imported()
    names, body = [], ""
    for interface, members in interfaces.items():
        body += f"\n\n# Interface `{interface}`\n" + _comment(members.doc)
        for enum, cases in members.enums.items():
            literal = ", ".join(repr(case) for case in cases)
            body += f"\n{_comment(members.enum_docs[enum])}"
            body += f"{pascal(enum)}: TypeAlias = Literal[{literal}]\n"
            names.append(pascal(enum))
        for name, function in members.functions.items():
            body += "\n" + _function(interface, name, function, set(members.enums))
            names.append(snake(name))
    if len(set(names)) != len(names):
        raise GenerateError("two functions of the contract have the same name")
    bindings = ["Err", *(f"{snake(each)} as _{snake(each)}" for each in interfaces)]
    head = _RAW.format(
        bindings=", ".join(bindings),
        converters=", ".join(sorted(set(re.findall(r"\bas_\w+(?=\()", body)))),
        names=sorted(names),
    )
    return notice("#") + head + body


def render_awaited() -> str:
    """Text of `inferlet/_generated/awaited.py`."""
    enums = {enum for members in imported().values() for enum in members.enums}
    body = _AWAITED.format(enums=", ".join(map(pascal, sorted(enums))))
    for name, function, _ in awaitable():
        body += "\n\n" + _coroutine(name, function, enums)
    return notice("#") + body


def render_bindings() -> str:
    """Text of `inferlet/_generated/bindings.py`."""
    names = [snake(each) for each in imported()]
    text = _BINDINGS.format(
        names=", ".join(names),
        absent="\n".join(f"    {name} = _Absent()" for name in names),
        exported=["Err", "INSIDE", *names],
    )
    return notice("#") + text


def _function(interface: str, name: str, function: Function, enums: set[str]) -> str:
    value, fallible = ok_type(function.result)
    params = ", ".join(f"{snake(key)}: {_param(of, enums)}" for key, of in function.params)
    module = f"_{snake(interface)}"
    arguments = ", ".join(_argument(snake(key), of, enums, module) for key, of in function.params)
    returns = "None" if value is None else _annotation(value, enums)
    call = f"{module}.{snake(name)}({arguments})"
    if value is not None:
        call = f"answer: {returns} = {call}"
    lines = [f"def {snake(name)}({params}) -> {returns}:", _docstring(function.doc)]
    if fallible:
        lines += ["    try:", f"        {call}", "    except Err as error:"]
        lines += ["        raise PieError(error.value) from None"]
    else:
        lines += [f"    {call}"]
    if value is not None:
        lines += ["    return answer"]
    return "\n".join(lines) + "\n"


def _coroutine(name: str, function: Function, enums: set[str]) -> str:
    """A function that waits for room and for the value of its future."""
    params = ", ".join(
        f"{snake(key)}: {_param(of, enums).replace('Iterable', 'Sequence')}"
        for key, of in function.params
    )
    steps, wait = awaited_steps(name, function, snake)
    if wait:
        steps = ["while True:", "    try:", *(f"        {step}" for step in steps)]
        steps += ["    except PieError as error:", '        if error.code != "would-block":']
        steps += ["            raise", f"    {wait}"]
    value = awaited_type(function)
    returns = "None" if value is None else _annotation(value, enums)
    head = f"async def {snake(name)}({params}) -> {returns}:\n{_docstring(awaited_doc(function))}"
    return "\n    ".join([head, *steps]) + "\n"


def _param(of: Type, enums: set[str]) -> str:
    """Annotation of a parameter: any iterable is good enough for a list."""
    if of.name == "list" and str(of) not in _SIMPLE:
        return f"Iterable[{_annotation(_element(of), enums)}]"
    return _annotation(of, enums)


def _annotation(of: Type, enums: set[str]) -> str:
    if str(of) in _SIMPLE:
        return _SIMPLE[str(of)]
    if _INTEGER.fullmatch(of.name):
        return "int"
    if of.name in enums:
        return pascal(of.name)
    if of.name in ("list", "tuple"):
        inner = ", ".join(_annotation(each, enums) for each in of.arguments if each is not None)
        return f"{of.name}[{inner}]"
    raise GenerateError(f"Python programs have no type for {of}")


def _argument(value: str, of: Type, enums: set[str], module: str) -> str:
    """The expression that checks an argument and makes it what the bindings take."""
    if str(of) in _ARGUMENTS:
        return _ARGUMENTS[str(of)].format(value)
    if integer := _INTEGER.fullmatch(of.name):
        bits = int(integer[2])
        bounds = f"0, 2**{bits}" if integer[1] == "u" else f"-2**{bits - 1}, 2**{bits - 1}"
        return f"as_integer({value}, {bounds})"
    if of.name in enums:
        return f"{module}.{pascal(of.name)}[{value}.upper()]"
    if of.name == "list" and _element(of).name == "tuple":
        parts = [each for each in _element(of).arguments if each is not None]
        names = ("first", "second", "third", "fourth")[: len(parts)]
        made = (_argument(*each, enums, module) for each in zip(names, parts, strict=True))
        return f"[({', '.join(made)}) for {', '.join(names)} in {value}]"
    raise GenerateError(f"no argument of a Python program can be a {of} yet")


def _element(of: Type) -> Type:
    element = of.arguments[0]
    assert element is not None
    return element


def _docstring(doc: str) -> str:
    lines = [line and f"    {line}" for line in spell(doc).split("\n")]
    lines[0] = f'    """{lines[0].strip()}'
    return "\n".join(lines) + ('"""' if len(lines) == 1 else '\n    """')


def _comment(doc: str) -> str:
    if not doc:
        return ""
    return "".join(f"# {line}".rstrip() + "\n" for line in spell(doc).split("\n"))
