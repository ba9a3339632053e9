"""The text of a function and of what it names, as device programs are sent."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from opcode import opmap
from textwrap import dedent
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

_WORDS = {
    "inferlet._generated.device_words": "device",
    "inferlet._generated.sampler_rules": "samplers",
}
_MODULES = ("inferlet.device", "inferlet.samplers", "inferlet.attention", "math")
_GLOBAL, _EXTENDED = opmap["LOAD_GLOBAL"], opmap["EXTENDED_ARG"]
_PLAIN = (bool, int, float, str, type(None))


class Said(NamedTuple):
    """A program's texts and constants.

    Attributes:
        texts: file, number of the first line, and source: its own, then those of functions that it
            calls.
        constants: plain values that they name.
    """

    texts: list[tuple[str, int, str]]
    constants: dict[str, Any]


def said(function: Any) -> Said:
    """A function, what it calls, and the plain values that these name; or a whole text, whose last
    function is the program.

    Raises:
        TypeError: a text is not known, or two things have one name.
    """
    if isinstance(function, str):
        return Said([("program", 1, dedent(function))], {})
    name = function.__name__
    found: dict[str, Any] = {"program" if name == "<lambda>" else name: function}
    texts, aliases = [], []
    waiting = list(found.items())
    while waiting:
        name, one = waiting.pop(0)
        texts.append(_text(name, one))
        for inner, value in _named(one):
            if alias := _alias(inner, value):
                aliases.append(alias)
            if not (_is_plain(value) or type(value) is FunctionType) or _is_word(value):
                continue  # the server names what it does not know
            if inner not in found and type(value) is FunctionType:
                waiting.append((inner, value))
            if (known := found.setdefault(inner, value)) is not value and known != value:
                raise TypeError(f"two things are called {inner} in a device program: rename one")
    if aliases:
        texts.append(("names", 1, "\n".join(sorted(set(aliases)))))
    return Said(texts, {name: value for name, value in found.items() if _is_plain(value)})


def _named(function: Any) -> Iterator[tuple[str, Any]]:
    """The values around it that a function, or one within it, names."""
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
    for name in dict.fromkeys(_names(code)):
        if name in cells:
            try:
                yield name, cells[name].cell_contents
            except ValueError:
                continue  # not assigned yet
        elif name in function.__globals__:
            yield name, function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    """Names of what is around a function, but for those of attributes."""
    yield from code.co_freevars
    extended = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        argument |= extended
        extended = argument << 8 if operation == _EXTENDED else 0
        if operation == _GLOBAL:
            yield code.co_names[argument >> 1]  # the lowest bit says that it is called
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(one) for name, one in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _is_word(value: Any) -> bool:
    return getattr(value, "__module__", "") in _WORDS


def _alias(name: str, value: Any) -> str:
    """A line that gives a word of the language, or a function, the name that it has here."""
    if isinstance(value, ModuleType) and value.__name__ in _MODULES:
        package, _, module = value.__name__.rpartition(".")
        line = f"from {package} import {module}" if package else f"import {module}"
        return "" if name == module else f"{line} as {name}"
    if _is_word(value):
        return f"from inferlet.{_WORDS[value.__module__]} import {value.__name__} as {name}"
    own = getattr(value, "__name__", name)
    is_function = type(value) is FunctionType and own != "<lambda>"
    return f"{name} = {own}" if is_function and own != name else ""


def _text(name: str, function: Any) -> tuple[str, int, str]:
    """File, first line and source of a function; of a lambda, as one of a name."""
    code = function.__code__
    file, first = code.co_filename, code.co_firstlineno
    lines = linecache.getlines(file)
    places = [one for one in _places(code) if one[2] is not None and one[3]]
    if not lines or not places:
        raise TypeError(
            f"the text of {name} is not known ({file}): write it in a file, or give"
            " `device.program` the text itself"
        )
    last = max(place[1] for place in places)
    if function.__name__ != "<lambda>":
        return file, first, "".join(lines[first - 1 : last])
    start = min((place[0], place[2]) for place in places)
    end = max((place[1], place[3]) for place in places)
    body = [line.encode() for line in lines[start[0] - 1 : end[0]]]
    body[-1] = body[-1][: end[1]]
    body[0] = body[0][start[1] :]
    given = list(code.co_varnames[: code.co_argcount])
    for i, value in enumerate(reversed(function.__defaults__ or ()), 1):
        given[-i] += f"={value!r}"
    return file, start[0], f"{name} = lambda {', '.join(given)}: ({b''.join(body).decode()})"


def _places(code: CodeType) -> Iterator[tuple[Any, Any, Any, Any]]:
    """First and last line, first and last column, of all that a function does."""
    yield from code.co_positions()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _places(inner)
